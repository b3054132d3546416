"""The events of `/v1/messages`: when they come, how they are named, how a stream ends."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx
import pytest

from infer_engine.protocol import (
    AnswerDelta,
    ContentDelta,
    FinishReason,
    ReasoningDelta,
    RequestFailure,
    ToolCallDelta,
)
from infer_proofs.server import FakeEngine, Script, running_server, sse_events
from infer_proofs.server.client import client_of
from infer_server import ServerSettings
from infer_server.api.carried_thinking import thinking_in

BODY: dict[str, Any] = {"max_tokens": 9, "messages": [{"role": "user", "content": "hi"}]}
CALL: tuple[tuple[AnswerDelta, ...], ...] = (
    (ToolCallDelta(0, "weather"),),
    (ToolCallDelta(0, arguments='{"ci'), ToolCallDelta(0, arguments='ty": "Rome"}')),
)


def answering(*steps: tuple[AnswerDelta, ...], **script: Any) -> FakeEngine:
    return FakeEngine(Script(steps=tuple(((index,), parts) for index, parts in enumerate(steps)), **script))


async def post(engine: FakeEngine, **body: Any) -> httpx.Response:
    async with client_of(engine) as client:
        return await client.post("/v1/messages", json=BODY | body)


async def events_of(engine: FakeEngine, **body: Any) -> list[tuple[str | None, Any]]:
    return sse_events((await post(engine, stream=True, **body)).text)


@asynccontextmanager
async def opened_stream(engine: FakeEngine, settings: ServerSettings | None = None) -> AsyncIterator[Any]:
    """Yield the lines of a stream as they come from a running server."""
    async with (
        running_server(engine, settings) as url,
        httpx.AsyncClient(base_url=url) as client,
        client.stream("POST", "/v1/messages", json=BODY | {"stream": True}) as reply,
    ):
        yield reply.aiter_lines()


async def next_event(lines: Any) -> list[str]:
    """Return the lines of the next event."""
    found: list[str] = []
    async for line in lines:
        if not line:
            return found
        found.append(line)
    return found


async def test_message_starts_before_the_first_token() -> None:
    engine = answering((ContentDelta("Yes."),), pause_after=0)
    async with opened_stream(engine) as lines:
        name, data = await next_event(lines)
        assert not engine.streams[0].ended.is_set()
    assert name == "event: message_start"
    assert '"usage":{"input_tokens":2,' in data
    assert '"stop_reason":null' in data


async def test_pings_of_a_waiting_stream_are_events() -> None:
    engine = answering((ContentDelta("Yes."),), pause_after=0)
    async with opened_stream(engine, ServerSettings(sse_ping_interval=0.01)) as lines:
        events = [await next_event(lines) for _ in range(4)]
    assert events[0][0] == "event: message_start"
    assert events[1:] == [["event: ping", 'data: {"type":"ping"}']] * 3


async def test_events_have_names_and_no_end_beside_message_stop() -> None:
    text = (await post(answering((ContentDelta("Yes."),)), stream=True)).text
    assert {line.partition(":")[0] for line in text.splitlines() if line} == {"event", "data"}
    assert "[DONE]" not in text
    events = sse_events(text)
    assert all(name == data["type"] for name, data in events)
    assert events[-1] == ("message_stop", {"type": "message_stop"})


async def test_stream_says_what_it_is(client: httpx.AsyncClient) -> None:
    reply = await client.post("/v1/messages", json=BODY | {"stream": True})
    assert reply.headers["content-type"].startswith("text/event-stream")


async def test_only_the_body_asks_for_a_stream(client: httpx.AsyncClient) -> None:
    for more in ({}, {"stream": False}, {"stream": None}):
        reply = await client.post("/v1/messages", json=BODY | more, headers={"Accept": "text/event-stream"})
        assert reply.json()["type"] == "message"


async def test_blocks_begin_empty_and_end_before_the_next_begins() -> None:
    engine = answering((ReasoningDelta("Hm"),), (ContentDelta("Yes."),), *CALL)
    events = await events_of(engine)
    started = [data["content_block"] for name, data in events if name == "content_block_start"]
    call_id = started[2].pop("id")
    assert call_id.startswith("toolu_")
    assert started == [
        {"type": "thinking", "thinking": "", "signature": ""},
        {"type": "text", "text": ""},
        {"type": "tool_use", "name": "weather", "input": {}},
    ]
    indexes = [(name, data["index"]) for name, data in events if "index" in data and name != "content_block_delta"]
    assert indexes == [(f"content_block_{word}", index) for index in range(3) for word in ("start", "stop")]


async def test_thinking_is_signed_whole_and_streamed() -> None:
    steps = (ReasoningDelta("H"),), (ReasoningDelta("m"),), (ContentDelta("Yes."),)
    [block, _] = (await post(answering(*steps))).json()["content"]
    deltas = [data["delta"] for name, data in await events_of(answering(*steps)) if name == "content_block_delta"]
    assert block["thinking"] == "Hm"
    assert block["signature"]
    assert deltas[2] == {"type": "signature_delta", "signature": block["signature"]}


async def test_thinking_may_be_left_out_but_for_its_signature() -> None:
    steps = (ReasoningDelta("Hm"),), (ContentDelta("Yes."),)
    asked = {"thinking": {"type": "enabled", "budget_tokens": 1024, "display": "omitted"}}
    [block, _] = (await post(answering(*steps), **asked)).json()["content"]
    deltas = [
        data["delta"] for name, data in await events_of(answering(*steps), **asked) if name == "content_block_delta"
    ]
    assert (block["thinking"], thinking_in(block["signature"])) == ("", "Hm")
    assert [delta["type"] for delta in deltas] == ["signature_delta", "text_delta"]


async def test_input_of_a_call_comes_as_pieces_of_json() -> None:
    deltas = [data["delta"] for name, data in await events_of(answering(*CALL)) if name == "content_block_delta"]
    assert deltas == [
        {"type": "input_json_delta", "partial_json": '{"ci'},
        {"type": "input_json_delta", "partial_json": 'ty": "Rome"}'},
    ]


ENDS: list[tuple[FinishReason, list[str], str, str | None]] = [
    (FinishReason.EOS, [], "end_turn", None),
    (FinishReason.GRAMMAR, [], "end_turn", None),
    (FinishReason.LENGTH, ["x"], "max_tokens", None),
    (FinishReason.STOP, ["x"], "stop_sequence", "x"),
    (FinishReason.STOP, ["y", "x"], "stop_sequence", "x"),
    (FinishReason.EOS, ["x"], "end_turn", None),
]


@pytest.mark.parametrize(("reason", "stops", "expected", "sequence"), ENDS)
async def test_end_of_a_text_is_told_in_the_message_and_in_the_stream(
    reason: FinishReason, stops: list[str], expected: str, sequence: str | None
) -> None:
    engine = answering((ContentDelta("Yes."),), finish_reason=reason, stop_reason="x")
    whole = (await post(engine, stop_sequences=stops)).json()
    assert (whole["stop_reason"], whole["stop_sequence"]) == (expected, sequence)
    events = dict(await events_of(engine, stop_sequences=stops))
    assert events["message_delta"]["delta"] == {"stop_reason": expected, "stop_sequence": sequence}


async def test_call_that_is_cut_off_is_no_tool_use() -> None:
    engine = answering(*CALL[:1], (ToolCallDelta(0, arguments='{"ci'),), finish_reason=FinishReason.LENGTH)
    whole = (await post(engine)).json()
    assert (whole["stop_reason"], whole["content"][0]["input"]) == ("max_tokens", {})
    events = dict(await events_of(engine))
    assert events["message_delta"]["delta"]["stop_reason"] == "max_tokens"
    assert events["content_block_stop"] == {"type": "content_block_stop", "index": 0}


@pytest.mark.parametrize(
    ("arguments", "shown"),
    [
        ('{"a": 1.0, "b": 123456789012345678901234567890}', '{"a": 1.0, "b": 123456789012345678901234567890}'),
        (r'{"a": "\ud800"}', r'{"a": "\ud800"}'),
        ('{"a": NaN}', "{}"),
        ("[1]", "{}"),
        ("", "{}"),
        ("[" * 100_000, "{}"),
    ],
    ids=lambda value: value[:20],
)
async def test_input_of_a_call_is_the_json_that_the_model_wrote(arguments: str, shown: str) -> None:
    reply = await post(answering((ToolCallDelta(0, "weather"), ToolCallDelta(0, arguments=arguments))))
    assert (reply.status_code, reply.json()["stop_reason"]) == (200, "tool_use")
    assert f'"input":{shown}}}' in reply.text


async def test_usage_counts_cached_tokens_apart_and_is_that_of_the_whole_answer() -> None:
    engine = answering((ReasoningDelta("Hm"),), (ContentDelta("Yes."),), num_cached_tokens=5)
    usage = {
        "input_tokens": 3,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": 5,
        "output_tokens": 2,
    }
    assert (await post(engine, system="system")).json()["usage"] == usage
    assert dict(await events_of(engine, system="system"))["message_delta"]["usage"] == usage


async def test_failure_is_the_last_event() -> None:
    engine = answering((ContentDelta("Ye"),), failure=RequestFailure(message="It broke.", code="step_failed"))
    events = await events_of(engine)
    assert [name for name, _ in events][-2:] == ["content_block_delta", "error"]
    assert events[-1][1] == {"type": "error", "error": {"type": "api_error", "message": "It broke."}}


async def test_client_that_leaves_ends_the_request() -> None:
    engine = answering((ContentDelta("Yes."),), pause_after=0)
    async with running_server(engine) as url, httpx.AsyncClient(base_url=url) as client:
        async with client.stream("POST", "/v1/messages", json=BODY | {"stream": True}):
            await engine.wait_for_requests(1)
        async with asyncio.timeout(10):
            await engine.wait_until_idle()
    assert engine.streams[0].aborted
