"""OpenAI's own Python client against the server, sync and async. Uses only what version 1.97.2 has."""

import asyncio
import time
from collections.abc import AsyncIterator

import openai
import pytest
from openai.types.chat import ChatCompletionMessageParam

from infer_engine.protocol import QueueFullError, RequestFailure
from infer_proofs.engine.cores import ScriptedEngine
from infer_proofs.server import BusyOnce, FakeEngine, Script, running_server
from infer_server import ServerSettings

HI: list[ChatCompletionMessageParam] = [{"role": "user", "content": "hi"}]


@pytest.fixture
def engine() -> FakeEngine:
    return FakeEngine()


@pytest.fixture
async def client(engine: FakeEngine) -> AsyncIterator[openai.AsyncOpenAI]:
    async with running_server(engine) as url, openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="-") as client:
        yield client


async def test_async_client_reads_a_completion(client: openai.AsyncOpenAI) -> None:
    answer = await client.completions.create(
        model="fake-model", prompt=["hi", "yo"], max_tokens=5, n=2, logprobs=1, echo=True
    )
    assert [choice.text[:7] for choice in answer.choices] == ["hiHello", "hiHello", "yoHello", "yoHello"]
    logprobs = answer.choices[3].logprobs
    assert logprobs
    assert logprobs.tokens == ["y", "o", "Hello", ",", " world"]
    assert answer.usage
    assert answer.usage.total_tokens == 4 + 12


@pytest.mark.covers("http/stream-same-step")
async def test_async_client_reads_a_stream(client: openai.AsyncOpenAI) -> None:
    chunks = await client.completions.create(
        model="fake-model", prompt="hi", stream=True, stream_options={"include_usage": True}
    )
    received = [chunk async for chunk in chunks]
    assert "".join(chunk.choices[0].text for chunk in received if chunk.choices) == "Hello, world"
    assert received[-2].choices[0].finish_reason == "stop"
    assert received[-1].usage
    assert received[-1].usage.completion_tokens == 3


@pytest.mark.covers("http/stream-same-step")
async def test_each_token_is_there_before_the_next_step_begins() -> None:
    """The core computes a step only once the client has read the event of the one before."""
    scripted = ScriptedEngine()
    async with running_server(scripted.engine) as url, openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="-") as client:
        scripted.gate.allow(1)
        chunks = await client.completions.create(
            model="scripted",
            prompt="hi",
            max_tokens=8,
            stream=True,
            extra_body={"ignore_eos": True, "return_token_ids": True},
        )
        steps: list[int] = []  # that there had been when an event with a token came
        async for chunk in chunks:
            if getattr(chunk.choices[0], "token_ids", None):
                steps.append(scripted.core.stats.num_steps)
                scripted.gate.allow(1)
    assert steps == list(range(1, 9))


@pytest.mark.covers("http/stream-event-names")
async def test_async_client_reads_a_stream_with_event_names(engine: FakeEngine) -> None:
    settings = ServerSettings(sse_event_names="always")
    async with running_server(engine, settings) as url, openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="-") as client:
        chunks = await client.completions.create(model="fake-model", prompt="hi", stream=True)
        assert "".join([chunk.choices[0].text async for chunk in chunks]) == "Hello, world"


async def test_async_client_reads_a_chat_and_sends_it_back(client: openai.AsyncOpenAI) -> None:
    answer = await client.chat.completions.create(model="fake-model", messages=HI, logprobs=True, top_logprobs=2, n=2)
    first, second = answer.choices
    assert (first.message.role, first.message.content, first.finish_reason) == ("assistant", "Hello, world", "stop")
    assert second.logprobs
    assert second.logprobs.content
    assert second.logprobs.content[0].bytes == list(b"Hello")
    assert [top.token for top in second.logprobs.content[0].top_logprobs] == ["Hello", ","]
    await client.chat.completions.create(model="fake-model", messages=[*HI, first.message.to_dict()])  # type: ignore[list-item]  # as users do


async def test_async_client_reads_a_chat_stream(client: openai.AsyncOpenAI) -> None:
    chunks = await client.chat.completions.create(
        model="fake-model", messages=HI, stream=True, logprobs=True, stream_options={"include_usage": True}
    )
    *received, last = [chunk async for chunk in chunks]
    assert received[0].choices[0].delta.role == "assistant"
    assert "".join(chunk.choices[0].delta.content or "" for chunk in received) == "Hello, world"
    assert received[-1].choices[0].finish_reason == "stop"
    assert received[1].choices[0].logprobs
    assert last.usage
    assert (last.choices, last.usage.total_tokens) == ([], 5)


def use_everything(url: str) -> list[str | None]:
    """Return the text of an answer of each kind, and the names of the models."""
    with openai.OpenAI(base_url=f"{url}/v1", api_key="-") as client:
        whole = client.completions.create(model="fake-model", prompt="hi")
        chunks = client.completions.create(model="fake-model", prompt="hi", stream=True)
        chat = client.chat.completions.create(model="fake-model", messages=HI)
        deltas = client.chat.completions.create(model="fake-model", messages=HI, stream=True)
        return [
            whole.choices[0].text,
            "".join(chunk.choices[0].text for chunk in chunks),
            chat.choices[0].message.content,
            "".join(delta.choices[0].delta.content or "" for delta in deltas),
            client.models.retrieve("fake-model").id,
            *[model.id for model in client.models.list()],
        ]


async def test_sync_client_reads_completions_chats_streams_and_models(engine: FakeEngine) -> None:
    async with running_server(engine) as url:
        answers = await asyncio.to_thread(use_everything, url)
    assert answers == ["Hello, world"] * 4 + ["fake-model"] * 2


async def test_client_raises_what_the_status_of_a_completion_says(client: openai.AsyncOpenAI) -> None:
    with pytest.raises(openai.UnprocessableEntityError, match=r"other.*is not served") as unprocessable:
        await client.completions.create(model="other", prompt="hi")
    assert (unprocessable.value.code, unprocessable.value.param) == ("model_not_found", "model")
    with pytest.raises(openai.BadRequestError) as bad:
        await client.completions.create(model="fake-model", prompt=[])
    assert (bad.value.code, bad.value.type) == ("empty_prompt", "invalid_request_error")


async def test_client_raises_what_the_status_of_a_chat_says(client: openai.AsyncOpenAI) -> None:
    with pytest.raises(openai.NotFoundError, match=r"other.*is not served") as missing:
        await client.chat.completions.create(model="other", messages=HI)
    assert (missing.value.code, missing.value.param) == ("model_not_found", "model")
    with pytest.raises(openai.BadRequestError, match="maximum context length is 512 tokens") as bad:
        await client.chat.completions.create(model="fake-model", messages=[{"role": "user", "content": "x" * 600}])
    assert (bad.value.code, bad.value.param) == ("context_length_exceeded", "messages")
    with pytest.raises(openai.NotFoundError):
        await client.models.retrieve("other")


@pytest.mark.covers("http/stream-failure")
async def test_client_raises_a_failure_after_the_stream_began() -> None:
    engine = FakeEngine(Script(failure=RequestFailure(message="It broke.", code="step_failed")))
    async with running_server(engine) as url, openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="-") as client:
        chunks = await client.completions.create(model="fake-model", prompt="hi", stream=True)
        with pytest.raises(openai.APIError, match="It broke"):
            assert [chunk async for chunk in chunks]
        deltas = await client.chat.completions.create(model="fake-model", messages=HI, stream=True)
        with pytest.raises(openai.APIError, match="It broke") as failed:
            assert [delta async for delta in deltas]
        assert failed.value.code == "step_failed"


async def test_client_raises_what_the_server_refuses_before_any_model_is_asked() -> None:
    engine = FakeEngine(Script(failure=RequestFailure(message="It broke.", code="step_failed")))
    async with running_server(engine, ServerSettings(api_key=("key",), max_body_size=1000)) as url:
        async with openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="another", max_retries=0) as stranger:
            with pytest.raises(openai.AuthenticationError) as unknown:
                await stranger.models.list()
        async with openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="key", max_retries=0) as client:
            with pytest.raises(openai.APIStatusError) as large:
                await client.completions.create(model="fake-model", prompt="x" * 1000)
            with pytest.raises(openai.InternalServerError, match="It broke") as failed:
                await client.completions.create(model="fake-model", prompt="x")
    refusals = [(error.value.status_code, error.value.code) for error in (unknown, large, failed)]
    assert refusals == [(401, "invalid_api_key"), (413, "body_too_large"), (500, "step_failed")]


@pytest.mark.covers("http/error-queue-full")
async def test_client_tries_a_full_queue_again_after_the_time_it_is_told() -> None:
    engine = BusyOnce()
    engine.refusal = QueueFullError("The queue is full.", retry_after_s=1)
    async with running_server(engine) as url, openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="-") as client:
        sent_s = time.monotonic()
        answer = await client.chat.completions.create(model="fake-model", messages=HI)
    assert answer.choices[0].message.content == "Hello, world"
    assert time.monotonic() - sent_s >= 1


async def test_client_is_told_of_a_full_queue_once_it_gives_up(client: openai.AsyncOpenAI, engine: FakeEngine) -> None:
    engine.refusal = QueueFullError("The queue is full.", retry_after_s=0)
    with pytest.raises(openai.InternalServerError) as refused:
        await client.with_options(max_retries=0).chat.completions.create(model="fake-model", messages=HI)
    assert (refused.value.status_code, refused.value.code) == (503, "queue_full")
