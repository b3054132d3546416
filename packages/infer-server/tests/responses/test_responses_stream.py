"""Streams of `/v1/responses`: OpenAI's events, in OpenAI's order."""

from itertools import pairwise
from typing import Any

import httpx
import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from openai.types.responses import ResponseStreamEvent
from pydantic import TypeAdapter

from infer_engine.protocol import (
    AnswerDelta,
    ContentDelta,
    FinishReason,
    GenerateRequest,
    ReasoningDelta,
    RequestFailure,
    SamplingParams,
    ToolCallDelta,
)
from infer_proofs.server import FakeEngine, Script, running_server, sse_events
from infer_proofs.server.client import client_of
from infer_server.openai.responses.events import ResponseEvents
from infer_server.openai.responses.request import ResponsesBody
from infer_server.openai.responses.response import ResponseBuilder

ANSWER: tuple[tuple[AnswerDelta, ...], ...] = (
    (ReasoningDelta("Hm"),),
    (ContentDelta("Let me "),),
    (ContentDelta("see."),),
    (),
    (ToolCallDelta(0, "weather"), ToolCallDelta(0, arguments="{")),
    (ToolCallDelta(0, arguments="}"), ToolCallDelta(1, "time", "{}")),
)
EVENT: TypeAdapter[Any] = TypeAdapter(ResponseStreamEvent)


def answering(*steps: tuple[AnswerDelta, ...], **script: Any) -> FakeEngine:
    """Return an engine whose answers have one token for each of `steps`."""
    return FakeEngine(Script(steps=tuple(((index,), parts) for index, parts in enumerate(steps)), **script))


async def stream(engine: FakeEngine, *, accept: str = "*/*", **body: Any) -> list[Any]:
    """Return the data of each event."""
    async with client_of(engine) as client:
        body = {"input": "hi", "stream": True, **body}
        reply = await client.post("/v1/responses", json=body, headers={"Accept": accept})
    assert reply.headers["content-type"].startswith("text/event-stream")
    events = sse_events(reply.text)
    assert [name for name, _ in events] == [data["type"] for _, data in events]
    assert [data["sequence_number"] for _, data in events] == list(range(len(events)))
    return [data for _, data in events]


@pytest.mark.covers("structured-tools-agents/responses")
async def test_events_are_openais_in_openais_order() -> None:
    events = await stream(answering(*ANSWER))
    shown = [(data["type"].removeprefix("response."), data.get("output_index"), data.get("delta")) for data in events]
    assert shown == [
        ("created", None, None),
        ("in_progress", None, None),
        ("output_item.added", 0, None),
        ("content_part.added", 0, None),
        ("reasoning_text.delta", 0, "Hm"),
        ("reasoning_text.done", 0, None),
        ("content_part.done", 0, None),
        ("output_item.done", 0, None),
        ("output_item.added", 1, None),
        ("content_part.added", 1, None),
        ("output_text.delta", 1, "Let me "),
        ("output_text.delta", 1, "see."),
        ("output_text.done", 1, None),
        ("content_part.done", 1, None),
        ("output_item.done", 1, None),
        ("output_item.added", 2, None),
        ("function_call_arguments.delta", 2, "{"),
        ("function_call_arguments.delta", 2, "}"),
        ("function_call_arguments.done", 2, None),
        ("output_item.done", 2, None),
        ("output_item.added", 3, None),
        ("function_call_arguments.delta", 3, "{}"),
        ("function_call_arguments.done", 3, None),
        ("output_item.done", 3, None),
        ("completed", None, None),
    ]


async def test_events_have_all_that_openais_models_of_them_need() -> None:
    for data in await stream(answering(*ANSWER, finish_reason=FinishReason.LENGTH)):
        assert EVENT.validate_python(data, strict=True).type == data["type"]


async def test_events_of_an_item_have_its_id_and_end_with_the_whole_of_it() -> None:
    events = await stream(answering(*ANSWER))
    output = events[-1]["response"]["output"]
    done = [data["item"] for data in events if data["type"] == "response.output_item.done"]
    assert done == output
    assert all(data["item_id"] == output[data["output_index"]]["id"] for data in events if "item_id" in data)
    texts = [
        data["text"] for data in events if data["type"] in ("response.output_text.done", "response.reasoning_text.done")
    ]
    assert texts == ["Hm", "Let me see."]
    parts = [data["part"] for data in events if data["type"] == "response.content_part.done"]
    assert parts == [item["content"][0] for item in output[:2]]
    calls = [data for data in events if data["type"] == "response.function_call_arguments.done"]
    assert [(data["name"], data["arguments"]) for data in calls] == [("weather", "{}"), ("time", "{}")]


async def test_items_begin_without_content() -> None:
    events = await stream(answering(*ANSWER))
    thought, text, call, _ = [data["item"] for data in events if data["type"] == "response.output_item.added"]
    assert (thought["content"], text["content"], call["arguments"]) == ([], [], "")
    assert {thought["status"], text["status"], call["status"]} == {"in_progress"}
    assert call["call_id"] == events[-1]["response"]["output"][2]["call_id"]


async def test_reasoning_comes_as_its_summary_where_one_is_asked_for() -> None:
    steps = (ReasoningDelta("H"),), (ReasoningDelta("m"),), (ContentDelta("Yes."),)
    events = await stream(answering(*steps), reasoning={"summary": "auto"})
    reasoning = [event for event in events if event.get("output_index") == 0]
    names = ["part.added", "text.delta", "text.delta", "text.done", "part.done"]
    assert [event["type"] for event in reasoning[1:-1]] == [f"response.reasoning_summary_{name}" for name in names]
    assert all(event["summary_index"] == 0 for event in reasoning[1:-1])
    item = reasoning[-1]["item"]
    assert (item["summary"], item["content"]) == ([{"type": "summary_text", "text": "Hm"}], [])
    for event in events:
        EVENT.validate_python(event)


@pytest.mark.parametrize("asked", [None, "none"])
async def test_reasoning_is_the_content_of_its_item_where_no_summary_is_asked_for(asked: str | None) -> None:
    events = await stream(answering((ReasoningDelta("Hm"),)), reasoning={"summary": asked})
    assert not [event for event in events if "summary" in event["type"]]
    assert events[-1]["response"]["reasoning"]["summary"] is None
    assert events[-1]["response"]["output"][0]["content"] == [{"type": "reasoning_text", "text": "Hm"}]


async def test_the_first_events_have_the_response_in_progress() -> None:
    created, in_progress, *_, last = await stream(answering(*ANSWER), instructions="Be nice.")
    response = created["response"]
    assert (response["status"], response["output"], response["usage"]) == ("in_progress", [], None)
    assert response == in_progress["response"]
    same = ("id", "created_at", "instructions", "tools", "model")
    assert [response[name] for name in same] == [last["response"][name] for name in same]


async def test_the_first_events_come_before_the_first_token() -> None:
    engine = answering(*ANSWER, pause_after=0)
    async with running_server(engine) as url, httpx.AsyncClient(base_url=url) as client:
        body = {"input": "hi", "stream": True}
        async with client.stream("POST", "/v1/responses", json=body) as reply:
            chunks = reply.aiter_text()
            first = await anext(chunks)
            assert "response.in_progress" in first
            engine.resume()
            assert "response.completed" in "".join([chunk async for chunk in chunks])


async def test_an_answer_that_is_cut_short_ends_incomplete() -> None:
    *_, done, last = await stream(answering(*ANSWER[:2], finish_reason=FinishReason.LENGTH))
    assert (last["type"], last["response"]["status"]) == ("response.incomplete", "incomplete")
    assert done["item"]["status"] == "incomplete"


FAILURES: list[tuple[dict[str, Any], str]] = [
    ({"failure": RequestFailure(message="It broke.", code="step_failed")}, "It broke."),
    ({"finish_reason": FinishReason.ABORT}, "shutting down"),
]


@pytest.mark.parametrize(("script", "words"), FAILURES, ids=["failure", "shutdown"])
async def test_a_failure_ends_the_open_item_and_then_the_response(script: dict[str, Any], words: str) -> None:
    *_, done, last = await stream(answering(*ANSWER[:2], **script))
    response = last["response"]
    assert (last["type"], response["status"], response["error"]["code"]) == (
        "response.failed",
        "failed",
        "server_error",
    )
    assert words in response["error"]["message"]
    assert (done["type"], done["item"]["status"]) == ("response.output_item.done", "incomplete")
    assert [item["status"] for item in response["output"]] == ["completed", "incomplete"]


async def test_an_unexpected_error_is_the_last_event() -> None:
    engine = answering(*ANSWER[:2], (ContentDelta("\ud800"),))  # half a character, which no JSON can have
    async with client_of(engine) as client:
        events = sse_events((await client.post("/v1/responses", json={"input": "hi", "stream": True})).text)
    (_, before), (name, last) = events[-2:]
    assert (name, last["type"], last["code"]) == ("error", "error", "internal_error")
    assert last["sequence_number"] > before["sequence_number"]
    assert EVENT.validate_python(last, strict=True).message


async def test_the_accept_header_decides_where_stream_is_left_out() -> None:
    events = await stream(answering(*ANSWER), accept="text/event-stream", stream=None)
    assert events[-1]["type"] == "response.completed"
    async with client_of(FakeEngine()) as client:
        body = {"input": "hi", "stream": False}
        reply = await client.post("/v1/responses", json=body, headers={"Accept": "text/event-stream"})
    assert reply.json()["object"] == "response"


async def test_a_client_that_leaves_aborts_the_request() -> None:
    engine = answering(*ANSWER, pause_after=2)
    async with running_server(engine) as url, httpx.AsyncClient(base_url=url) as client:
        async with client.stream("POST", "/v1/responses", json={"input": "hi", "stream": True}):
            await engine.wait_for_requests(1)
        await engine.wait_until_idle()
    assert engine.streams[0].aborted


PIECES = st.one_of(
    st.builds(ReasoningDelta, st.text(max_size=3)),
    st.builds(ContentDelta, st.text(max_size=3)),
    st.builds(ToolCallDelta, st.just(0), name=st.sampled_from(["weather", "time"]), arguments=st.text(max_size=3)),
)


def halves(piece: AnswerDelta) -> list[AnswerDelta]:
    """Return the same as `piece` in two pieces."""
    match piece:
        case ToolCallDelta(index, name, text):
            return [ToolCallDelta(index, name, text[:1]), ToolCallDelta(index, arguments=text[1:])]
        case ReasoningDelta(text):
            return [ReasoningDelta(text[:1]), ReasoningDelta(text[1:])]
        case ContentDelta(text):
            return [ContentDelta(text[:1]), ContentDelta(text[1:])]
        case _:
            return [piece]


def without_ids(value: Any) -> Any:
    """Return `value` without what is another in every response."""
    match value:
        case dict():
            return {name: without_ids(v) for name, v in value.items() if name not in ("id", "call_id", "created_at")}
        case list():
            return [without_ids(each) for each in value]
        case _:
            return value


async def answer_of(steps: list[list[AnswerDelta]], reason: FinishReason) -> ResponseEvents:
    """Return the answer to a request whose outputs have these deltas."""
    engine = answering(*map(tuple, steps), finish_reason=reason)
    [outputs] = await engine.submit([GenerateRequest(prompt="hi", params=SamplingParams())])
    builder = ResponseBuilder(ResponsesBody(input="hi"), SamplingParams(), served_model="m")
    return ResponseEvents(outputs, builder, keep=lambda _: None)


@given(
    pieces=st.lists(PIECES, max_size=8),
    halved=st.sets(st.integers(0, 7)),
    cuts=st.sets(st.integers(1, 15)),
    reason=st.sampled_from([FinishReason.EOS, FinishReason.LENGTH]),
)
async def test_an_answer_is_the_same_whole_or_streamed_however_it_is_cut(
    pieces: list[AnswerDelta], halved: set[int], cuts: set[int], reason: FinishReason
) -> None:
    smaller = [part for index, piece in enumerate(pieces) for part in (halves(piece) if index in halved else [piece])]
    bounds = [0, *sorted(cut for cut in cuts if cut < len(smaller)), len(smaller)]
    steps = [smaller[start:end] for start, end in pairwise(bounds)]
    at_once = msgspec.to_builtins(await (await answer_of([pieces], reason)).whole())
    whole = msgspec.to_builtins(await (await answer_of(steps, reason)).whole())
    events = sse_events(b"".join([event async for event in (await answer_of(steps, reason)).events()]).decode())
    assert without_ids(events[-1][1]["response"]) == without_ids(whole)
    assert without_ids(whole["output"]) == without_ids(at_once["output"])
    done = [data["item"] for name, data in events if name == "response.output_item.done"]
    assert done == events[-1][1]["response"]["output"]
