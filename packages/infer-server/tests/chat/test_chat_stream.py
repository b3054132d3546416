"""Streams of `POST /v1/chat/completions`: OpenAI's chunks, in OpenAI's order, never with a name."""

from typing import Any

import httpx
import pytest

from infer_engine.protocol import FinishReason, RequestFailure
from infer_proofs.server import FakeEngine, Script, running_server, sse_events
from infer_server import ServerSettings

HI = [{"role": "user", "content": "hi"}]


async def stream(
    engine: FakeEngine | None = None, *, settings: ServerSettings | None = None, accept: str = "*/*", **body: Any
) -> httpx.Response:
    async with running_server(engine or FakeEngine(), settings) as url, httpx.AsyncClient(base_url=url) as client:
        body = {"messages": HI, "stream": True, **body}
        return await client.post("/v1/chat/completions", json=body, headers={"Accept": accept})


def chunks(reply: httpx.Response) -> list[Any]:
    """Return the data of each event, without `[DONE]`."""
    *events, (_, done) = sse_events(reply.text)
    assert done == "[DONE]"
    return [data for _, data in events]


def deltas(received: list[Any], index: int = 0) -> list[tuple[Any, str | None]]:
    """Return (delta, finish reason) of each chunk of one choice."""
    choices = [chunk["choices"][0] for chunk in received if chunk["choices"]]
    return [(choice["delta"], choice["finish_reason"]) for choice in choices if choice["index"] == index]


async def test_text_that_was_held_back_comes_with_the_end_of_the_choice() -> None:
    engine = FakeEngine(Script(steps=(((1,), "Hello"), ((), " held back"))))
    *_, token, last = deltas(chunks(await stream(engine)))
    assert (token, last) == (({"content": "Hello"}, None), ({"content": " held back"}, "stop"))


@pytest.mark.covers("http/chat-chunks")
async def test_stream_is_role_then_content_per_token_then_the_end_then_done() -> None:
    assert deltas(chunks(await stream())) == [
        ({"role": "assistant", "content": ""}, None),
        ({"content": "Hello"}, None),
        ({"content": ","}, None),
        ({"content": " world"}, None),
        ({}, "stop"),
    ]


@pytest.mark.covers("http/chat-chunks")
async def test_chunks_are_openais_objects_and_share_id_time_and_model() -> None:
    received = chunks(await stream())
    assert all(
        set(chunk) == {"id", "object", "created", "model", "choices"} and chunk["object"] == "chat.completion.chunk"
        for chunk in received
    )
    assert len({(chunk["id"], chunk["created"], chunk["model"]) for chunk in received}) == 1
    assert received[0]["id"].startswith("chatcmpl-")


async def test_usage_comes_last_with_no_choices_where_asked_for() -> None:
    *rest, last = chunks(await stream(n=2, stream_options={"include_usage": True}))
    assert last["choices"] == []
    assert last["usage"] == {"prompt_tokens": 2, "completion_tokens": 6, "total_tokens": 8}
    assert not any("usage" in chunk for chunk in rest)


async def test_each_choice_has_its_role_its_tokens_and_its_end() -> None:
    received = chunks(await stream(n=2))
    assert deltas(received, 0) == deltas(received, 1)
    assert len(deltas(received, 1)) == 5


async def test_token_whose_text_is_held_back_has_a_chunk_too() -> None:
    engine = FakeEngine(Script(steps=(((7,), ""), ((8, 9), "ab")), finish_reason=FinishReason.LENGTH))
    contents = [delta.get("content") for delta, _ in deltas(chunks(await stream(engine)))]
    assert contents == ["", "", "", "ab", None]


async def test_logprobs_go_with_their_token() -> None:
    engine = FakeEngine(Script(steps=(((104, 105), "hi"),)))
    received = chunks(await stream(engine, logprobs=True, top_logprobs=1))
    listed = [chunk["choices"][0]["logprobs"] for chunk in received]
    assert [entry and [token["token"] for token in entry["content"]] for entry in listed] == [None, ["h"], ["i"], None]


@pytest.mark.covers("http/chat-chunks")
@pytest.mark.parametrize("names", ["always", "negotiated", "never"])
async def test_events_never_have_names(names: Any) -> None:
    reply = await stream(settings=ServerSettings(sse_event_names=names), accept="text/event-stream", stream=None)
    assert {name for name, _ in sse_events(reply.text)} == {None}


async def test_failure_after_the_start_is_an_error_without_a_name_then_done() -> None:
    engine = FakeEngine(Script(failure=RequestFailure(message="It broke.", code="step_failed")))
    reply = await stream(engine, accept="text/event-stream")
    (name, error), (_, done) = sse_events(reply.text)[-2:]
    assert (name, done) == (None, "[DONE]")
    assert error["error"] == {"message": "It broke.", "type": "server_error", "param": None, "code": "step_failed"}


async def test_answer_that_the_server_cuts_short_ends_with_an_error_for_openai_has_no_word_for_it() -> None:
    engine = FakeEngine(Script(finish_reason=FinishReason.ABORT))
    *_, (_, error), (_, done) = sse_events((await stream(engine)).text)
    assert (error["error"]["code"], done) == ("engine_unavailable", "[DONE]")
