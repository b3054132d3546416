"""Streams of `POST /v1/completions`: every event, every header, in order."""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx
import pytest

from infer_engine.protocol import FinishReason, RequestFailure
from infer_proofs.server import FakeEngine, Script, running_server, sse_events
from infer_server import ServerSettings

NAMED = {"Accept": "text/event-stream"}


async def stream(
    engine: FakeEngine,
    *,
    settings: ServerSettings | None = None,
    headers: dict[str, str] | None = None,
    **body: Any,
) -> httpx.Response:
    async with running_server(engine, settings) as url, httpx.AsyncClient(base_url=url) as client:
        return await client.post("/v1/completions", json={"prompt": "hi", **body}, headers=headers)


def events(reply: httpx.Response) -> list[tuple[str | None, Any]]:
    """Return (name, data) of each event."""
    assert reply.text.endswith("\n\n")
    return sse_events(reply.text)


@pytest.mark.covers(
    "http/body-model", "http/stream-when", "http/stream-chunks", "http/stream-end", "http/stream-finish-reasons"
)
async def test_stream_has_one_event_per_token_then_the_end_then_done() -> None:
    reply = await stream(FakeEngine(), headers=NAMED)
    assert [name for name, _ in events(reply)] == ["token", "token", "token", "done", None]
    *chunks, last, done = [data for _, data in events(reply)]
    assert [(chunk["token_id"], chunk["token"]) for chunk in chunks] == [(1, "Hello"), (2, ","), (3, " world")]
    assert chunks[0]["choices"] == [{"index": 0, "text": "Hello", "logprobs": None, "finish_reason": None}]
    [choice] = last["choices"]
    assert choice == {"index": 0, "text": "", "logprobs": None, "finish_reason": "stop", "stop_reason": None}
    assert last["finish_reason"] == "eos"
    assert last["usage"] == {"prompt_tokens": 2, "completion_tokens": 3, "total_tokens": 5}
    assert done == "[DONE]"


async def test_text_that_was_held_back_comes_with_the_end_of_the_choice() -> None:
    engine = FakeEngine(Script(steps=(((1,), "Hello"), ((), " held back"))))
    *_, token, last, _ = [data for _, data in events(await stream(engine, stream=True))]
    assert (token["token"], last["choices"][0]["text"], last["finish_reason"]) == ("Hello", " held back", "eos")


@pytest.mark.covers("http/stream-chunks")
async def test_chunks_of_a_stream_share_id_time_model_and_object() -> None:
    chunks = [data for _, data in events(await stream(FakeEngine(), stream=True))[:-1]]
    assert len({(chunk["id"], chunk["created"]) for chunk in chunks}) == 1
    assert {(chunk["model"], chunk["object"]) for chunk in chunks} == {("fake-model", "text_completion")}


@pytest.mark.covers("http/stream-headers")
async def test_stream_headers_keep_proxies_from_buffering() -> None:
    reply = await stream(FakeEngine(), stream=True)
    assert reply.status_code == 200
    assert reply.headers["content-type"].startswith("text/event-stream")
    assert reply.headers["cache-control"] == "no-cache"
    assert reply.headers["x-accel-buffering"] == "no"
    assert reply.headers["x-request-id"]


@pytest.mark.covers("http/stream-event-names", "http/stream-event-names-flag")
@pytest.mark.parametrize(
    ("names", "accept", "named"),
    [
        ("negotiated", "*/*", False),
        ("negotiated", "application/json, Text/Event-Stream;q=0.5", True),
        ("always", "*/*", True),
        ("never", "text/event-stream", False),
    ],
)
async def test_event_names_go_to_those_who_ask_for_them(names: Any, accept: str, named: bool) -> None:  # noqa: FBT001 - a table of cases
    settings = ServerSettings(sse_event_names=names)
    reply = await stream(FakeEngine(), settings=settings, headers={"Accept": accept}, stream=True)
    assert ("event: " in reply.text) is named


@pytest.mark.covers("http/body-stream", "http/stream-include-usage")
async def test_usage_of_the_whole_request_comes_last_where_asked_for() -> None:
    reply = await stream(FakeEngine(), headers=NAMED, prompt=["a", "b"], stream_options={"include_usage": True})
    name, chunk = events(reply)[-2]
    assert name is None
    assert chunk["choices"] == []
    assert chunk["usage"] == {"prompt_tokens": 2, "completion_tokens": 6, "total_tokens": 8}


@pytest.mark.covers("http/stream-event-per-token")
async def test_tokens_of_one_step_get_an_event_each_and_the_text_goes_with_the_last() -> None:
    engine = FakeEngine(Script(steps=(((7, 8, 9), "abc"), ((5,), ""), ((6,), "d")), finish_reason=FinishReason.LENGTH))
    *chunks, last, _ = [data for _, data in events(await stream(engine, stream=True))]
    assert [(chunk["token_id"], chunk["token"]) for chunk in chunks] == [
        (7, ""),
        (8, ""),
        (9, "abc"),
        (5, ""),
        (6, "d"),
    ]
    assert (last["finish_reason"], last["choices"][0]["finish_reason"]) == ("length", "length")


@pytest.mark.covers("http/stream-event-per-token")
async def test_choices_of_a_batch_have_their_tokens_in_order_and_one_end_each() -> None:
    chunks = [data for _, data in events(await stream(FakeEngine(), stream=True, prompt=["a", "bcd"]))[:-1]]
    for index, num_prompt_tokens in ((0, 1), (1, 3)):
        *tokens, last = [chunk for chunk in chunks if chunk["choices"][0]["index"] == index]
        assert [chunk["token_id"] for chunk in tokens] == [1, 2, 3]
        assert last["usage"]["prompt_tokens"] == num_prompt_tokens


async def test_text_cannot_break_out_of_its_event() -> None:
    text = "\n\ndata: [DONE]\r\n\r\nevent: error\u2028"
    reply = await stream(FakeEngine(Script(steps=(((1,), text), ((2,), "")))), stream=True)
    assert next(data for _, data in events(reply))["token"] == text
    assert reply.text.count("\n\ndata: [DONE]\n\n") == 1


@pytest.mark.covers("http/stream-failure")
async def test_failure_after_the_start_is_an_error_event_then_done() -> None:
    engine = FakeEngine(Script(failure=RequestFailure(message="It broke.", code="step_failed")))
    *_, (name, data), (_, done) = events(await stream(engine, headers=NAMED))
    assert name == "error"
    assert data == {"error": {"message": "It broke.", "type": "server_error", "param": None, "code": "step_failed"}}
    assert done == "[DONE]"


@asynccontextmanager
async def open_stream(
    engine: FakeEngine, *, settings: ServerSettings | None = None, prompt: object = "a"
) -> AsyncIterator[AsyncIterator[str]]:
    """Start a stream and read its first event; yields the lines that follow."""
    async with (
        running_server(engine, settings) as url,
        httpx.AsyncClient(base_url=url) as client,
        client.stream("POST", "/v1/completions", json={"prompt": prompt, "stream": True}) as reply,
    ):
        lines = reply.aiter_lines()
        assert "Hello" in await anext(lines)
        yield lines


async def test_failure_of_one_choice_aborts_the_others() -> None:
    engine = FakeEngine(Script(pause_after=1))
    async with open_stream(engine, prompt=["a", "b"]) as lines:
        engine.streams[0].fail(RequestFailure(message="It broke."))
        assert [line async for line in lines if line][-1] == "data: [DONE]"
    assert engine.streams[1].aborted


@pytest.mark.covers("http/stream-finish-reasons")
async def test_abort_by_the_server_ends_the_choice_with_the_engines_word() -> None:
    engine = FakeEngine(Script(pause_after=1))
    async with open_stream(engine) as lines:
        engine.streams[0].abort()
        *_, last, done = [line async for line in lines if line]
    assert json.loads(last.removeprefix("data: "))["finish_reason"] == "abort"
    assert done == "data: [DONE]"


@pytest.mark.covers("http/stream-ping")
async def test_idle_stream_gets_comments() -> None:
    engine = FakeEngine(Script(pause_after=1))
    async with open_stream(engine, settings=ServerSettings(sse_ping_interval=0.01)) as lines:
        assert ": ping" in [await anext(lines) for _ in range(4)]
        engine.resume()
        assert "data: [DONE]" in [line async for line in lines]
