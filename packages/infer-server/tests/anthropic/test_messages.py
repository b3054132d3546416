"""`POST /v1/messages`: the message, its events, and what reaches the engine."""

from typing import Any

import httpx
import pytest

from infer_engine.protocol import (
    AnswerDelta,
    ContentDelta,
    FinishReason,
    ReasoningDelta,
    StructuredOutputs,
    Tool,
    ToolCallDelta,
)
from infer_proofs.server import FakeEngine, Script, sse_events
from infer_proofs.server.client import client_of
from infer_server import ServerSettings
from infer_server.api.carried_thinking import carried_thinking

SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}}
TOOLS: list[Any] = [{"name": "weather", "input_schema": SCHEMA}, {"name": "time", "input_schema": {"type": "object"}}]
HI: list[Any] = [{"role": "user", "content": "hi"}]
ANSWER: tuple[tuple[AnswerDelta, ...], ...] = (
    (ReasoningDelta("Hm"),),
    (ContentDelta("Let me "), ContentDelta("see.")),
    (ToolCallDelta(0, "weather"), ToolCallDelta(0, arguments="{")),
    (ToolCallDelta(0, arguments='"city": "Rome"}'), ToolCallDelta(1, "time"), ToolCallDelta(1, arguments="{}")),
)


def answering(*steps: tuple[AnswerDelta, ...], reason: FinishReason = FinishReason.EOS, **script: Any) -> FakeEngine:
    numbered = tuple(((index,), parts) for index, parts in enumerate(steps))
    return FakeEngine(Script(steps=numbered, finish_reason=reason, **script))


async def post(engine: FakeEngine, settings: ServerSettings | None = None, **body: Any) -> httpx.Response:
    async with client_of(engine, settings) as client:
        return await client.post("/v1/messages", json={"max_tokens": 9, "messages": HI, **body})


async def message(engine: FakeEngine, **body: Any) -> Any:
    reply = await post(engine, **body)
    assert reply.status_code == 200, reply.text
    return reply.json()


async def test_message_is_anthropics_object() -> None:
    answer = await message(answering((ContentDelta("Yes."),), num_cached_tokens=1))
    assert answer.pop("id").startswith("msg_")
    assert answer == {
        "type": "message",
        "role": "assistant",
        "model": "fake-model",
        "content": [{"type": "text", "text": "Yes."}],
        "stop_reason": "end_turn",
        "stop_sequence": None,
        "usage": {
            "input_tokens": 1,
            "cache_creation_input_tokens": 0,
            "cache_read_input_tokens": 1,
            "output_tokens": 1,
        },
    }


@pytest.mark.covers("structured-tools-agents/messages")
async def test_events_are_anthropics_in_their_order() -> None:
    reply = await post(answering(*ANSWER), stream=True, tools=TOOLS)
    events = sse_events(reply.text)
    assert all(name == data["type"] for name, data in events)
    shown = [
        (name, data.get("index"), data.get("delta") or data.get("content_block", {}).get("type"))
        for name, data in events
    ]
    assert shown == [
        ("message_start", None, None),
        ("ping", None, None),
        ("content_block_start", 0, "thinking"),
        ("content_block_delta", 0, {"type": "thinking_delta", "thinking": "Hm"}),
        ("content_block_delta", 0, {"type": "signature_delta", "signature": carried_thinking("Hm")}),
        ("content_block_stop", 0, None),
        ("content_block_start", 1, "text"),
        ("content_block_delta", 1, {"type": "text_delta", "text": "Let me "}),
        ("content_block_delta", 1, {"type": "text_delta", "text": "see."}),
        ("content_block_stop", 1, None),
        ("content_block_start", 2, "tool_use"),
        ("content_block_delta", 2, {"type": "input_json_delta", "partial_json": "{"}),
        ("content_block_delta", 2, {"type": "input_json_delta", "partial_json": '"city": "Rome"}'}),
        ("content_block_stop", 2, None),
        ("content_block_start", 3, "tool_use"),
        ("content_block_delta", 3, {"type": "input_json_delta", "partial_json": "{}"}),
        ("content_block_stop", 3, None),
        ("message_delta", None, {"stop_reason": "tool_use", "stop_sequence": None}),
        ("message_stop", None, None),
    ]
    assert events[0][1]["message"]["usage"]["input_tokens"] == 2
    assert events[-2][1]["usage"]["output_tokens"] == 4


STOPS: list[tuple[FinishReason, dict[str, Any], tuple[str, str | None]]] = [
    (FinishReason.EOS, {}, ("tool_use", None)),
    (FinishReason.GRAMMAR, {}, ("tool_use", None)),
    (FinishReason.LENGTH, {}, ("max_tokens", None)),
    (FinishReason.STOP, {"stop_sequences": ["b", "a"]}, ("stop_sequence", "a")),
]


@pytest.mark.parametrize(("reason", "body", "expected"), STOPS)
async def test_stop_reasons(reason: FinishReason, body: dict[str, Any], expected: tuple[str, str | None]) -> None:
    answer = await message(answering(*ANSWER, reason=reason, stop_reason="a"), **body)
    assert (answer["stop_reason"], answer["stop_sequence"]) == expected


CHOICES: list[tuple[dict[str, Any], tuple[str, str | None, bool]]] = [
    ({}, ("auto", None, True)),
    ({"tool_choice": {"type": "auto", "disable_parallel_tool_use": True}}, ("auto", None, False)),
    ({"tool_choice": {"type": "any"}}, ("required", None, True)),
    ({"tool_choice": {"type": "tool", "name": "time"}}, ("required", "time", True)),
    ({"tool_choice": {"type": "none"}}, ("none", None, True)),
]


@pytest.mark.parametrize(("body", "expected"), CHOICES)
async def test_tool_choices(body: dict[str, Any], expected: tuple[str, str | None, bool]) -> None:
    engine = FakeEngine()
    search = {"type": "web_search_20250305", "name": "web_search", "max_uses": 3}
    await message(engine, tools=[*TOOLS, search], **body)
    prompt: Any = engine.requests[0].prompt
    assert (prompt.tool_choice, prompt.tool_name, prompt.parallel_tool_calls) == expected
    assert prompt.tools == (Tool(name="weather", parameters=SCHEMA), Tool(name="time", parameters={"type": "object"}))


async def test_parameters_reach_the_engine() -> None:
    engine = FakeEngine()
    format_ = {"type": "json_schema", "schema": SCHEMA}
    sampling = {"temperature": 0.5, "top_p": 0.9, "top_k": 5, "stop_sequences": ["x"]}
    await message(engine, max_tokens=7, **sampling, thinking={"type": "disabled"}, output_config={"format": format_})
    await message(engine, thinking={"type": "enabled", "budget_tokens": 1024}, output_format=format_)
    first, second = engine.requests
    params = first.params
    assert (params.max_tokens, params.temperature, params.top_p, params.top_k) == (7, 0.5, 0.9, 5)
    assert params.stop == ("x",)
    assert params.structured_outputs == second.params.structured_outputs == StructuredOutputs(json=SCHEMA)
    prompts: Any = (first.prompt, second.prompt)
    assert [prompt.template_kwargs for prompt in prompts] == [{"enable_thinking": False}, {"enable_thinking": True}]


async def test_more_tokens_than_the_context_has_room_for_are_not_refused() -> None:
    engine = FakeEngine()
    await message(engine, max_tokens=32_000)
    assert (engine.requests[0].params.max_tokens, engine.requests[0].clip_max_tokens) == (32_000, True)


WRONG: list[tuple[dict[str, Any], str]] = [
    ({"messages": []}, "messages"),
    ({"messages": [{"role": "robot", "content": "x"}]}, "messages[0].role"),
    ({"messages": [{"role": "user", "content": "x" * 600}]}, "prompt is too long: 600 tokens > 512 maximum"),
    ({"tools": [TOOLS[0], TOOLS[0]]}, "tools[1].name"),
    ({"tool_choice": {"type": "maybe"}}, "tool_choice"),
    ({"tool_choice": {"type": "any"}}, "tool_choice"),
    ({"tools": TOOLS, "tool_choice": {"type": "tool", "name": "x"}}, "tool_choice.name"),
]


@pytest.mark.parametrize(("body", "words"), WRONG, ids=lambda value: str(value)[:60])
async def test_what_cannot_be_answered_is_refused_by_name(body: dict[str, Any], words: str) -> None:
    reply = await post(FakeEngine(), **body)
    assert reply.status_code == 400
    assert words in reply.json()["error"]["message"]
