"""OpenAI's own Python client against the server, sync and async."""

import asyncio
from collections.abc import AsyncIterator

import openai
import pytest

from infer_engine.protocol import QueueFullError, RequestFailure
from infer_server import ServerSettings
from infer_server.testing import FakeEngine, Script, running_server


@pytest.fixture
def engine() -> FakeEngine:
    return FakeEngine()


@pytest.fixture
async def client(engine: FakeEngine) -> AsyncIterator[openai.AsyncOpenAI]:
    async with running_server(engine) as url, openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="-") as client:
        yield client


async def test_async_client_reads_a_completion(client: openai.AsyncOpenAI) -> None:
    answer = await client.completions.create(model="fake-model", prompt="hi", max_tokens=5)
    assert answer.choices[0].text == "Hello, world"
    assert answer.usage
    assert answer.usage.total_tokens == 5


async def test_async_client_reads_a_stream(client: openai.AsyncOpenAI) -> None:
    chunks = await client.completions.create(
        model="fake-model", prompt="hi", stream=True, stream_options={"include_usage": True}
    )
    received = [chunk async for chunk in chunks]
    assert "".join(chunk.choices[0].text for chunk in received if chunk.choices) == "Hello, world"
    assert received[-2].choices[0].finish_reason == "stop"
    assert received[-1].usage
    assert received[-1].usage.completion_tokens == 3


async def test_async_client_reads_a_stream_with_event_names(engine: FakeEngine) -> None:
    settings = ServerSettings(sse_event_names="always")
    async with running_server(engine, settings) as url, openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="-") as client:
        chunks = await client.completions.create(model="fake-model", prompt="hi", stream=True)
        assert "".join([chunk.choices[0].text async for chunk in chunks]) == "Hello, world"


async def test_sync_client_reads_completions_streams_and_models(engine: FakeEngine) -> None:
    def use(url: str) -> tuple[str, str, str, list[str]]:
        with openai.OpenAI(base_url=f"{url}/v1", api_key="-") as client:
            whole = client.completions.create(model="fake-model", prompt="hi")
            chunks = client.completions.create(model="fake-model", prompt="hi", stream=True)
            streamed = "".join(chunk.choices[0].text for chunk in chunks)
            model = client.models.retrieve("fake-model")
            return whole.choices[0].text, streamed, model.id, [model.id for model in client.models.list()]

    async with running_server(engine) as url:
        answers = await asyncio.to_thread(use, url)
    assert answers == ("Hello, world", "Hello, world", "fake-model", ["fake-model"])


async def test_client_raises_what_the_status_says(client: openai.AsyncOpenAI) -> None:
    with pytest.raises(openai.UnprocessableEntityError) as unprocessable:
        await client.completions.create(model="other", prompt="hi")
    assert (unprocessable.value.code, unprocessable.value.param) == ("model_not_found", "model")
    with pytest.raises(openai.BadRequestError):
        await client.completions.create(model="fake-model", prompt="")
    with pytest.raises(openai.NotFoundError):
        await client.models.retrieve("other")


async def test_client_raises_a_failure_after_the_stream_began() -> None:
    engine = FakeEngine(Script(failure=RequestFailure(message="It broke.", code="step_failed")))
    async with running_server(engine) as url, openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="-") as client:
        chunks = await client.completions.create(model="fake-model", prompt="hi", stream=True)
        with pytest.raises(openai.APIError, match="It broke"):
            assert [chunk async for chunk in chunks]


async def test_client_tries_a_full_queue_again_after_the_time_it_is_told(
    client: openai.AsyncOpenAI, engine: FakeEngine
) -> None:
    engine.refusal = QueueFullError("The queue is full.", retry_after_s=0)
    with pytest.raises(openai.InternalServerError) as refused:
        await client.with_options(max_retries=0).completions.create(model="fake-model", prompt="hi")
    assert (refused.value.status_code, refused.value.code) == (503, "queue_full")
