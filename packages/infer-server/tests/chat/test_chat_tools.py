"""Tools in `/v1/chat/completions`: what reaches the engine, and how calls come back."""

import json
from typing import Any

import httpx
import pytest

from infer_engine.protocol import (
    AnswerDelta,
    ChatMessage,
    ContentDelta,
    FinishReason,
    InvalidRequestError,
    Tool,
    ToolCall,
    ToolCallDelta,
)
from infer_proofs.server import FakeEngine, Script, sse_events
from infer_proofs.server.client import client_of

HI = [{"role": "user", "content": "hi"}]
PARAMETERS = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
WEATHER = {"type": "function", "function": {"name": "weather", "description": "How it is.", "parameters": PARAMETERS}}
TIME = {"type": "function", "function": {"name": "time", "strict": True}}
NAMED = {"type": "function", "function": {"name": "time"}}
CALL = {"id": "call_1", "type": "function", "function": {"name": "weather", "arguments": '{"city": "Rome"}'}}
ASKED: list[dict[str, Any]] = [*HI, {"role": "assistant", "content": None, "tool_calls": [CALL]}]
RESULT = {"role": "tool", "tool_call_id": "call_1", "content": "sunny"}


def answering(*steps: tuple[AnswerDelta, ...], reason: FinishReason = FinishReason.EOS) -> FakeEngine:
    """Return an engine whose answers have one token for each of `steps`."""
    return FakeEngine(Script(steps=tuple(((index,), parts) for index, parts in enumerate(steps)), finish_reason=reason))


TWO_CALLS: tuple[tuple[AnswerDelta, ...], ...] = (
    (ContentDelta("Let me "),),
    (ContentDelta("see."),),
    (),
    (ToolCallDelta(0, "weather"), ToolCallDelta(0, arguments="{")),
    (ToolCallDelta(0, arguments='"city": "Rome"}'),),
    (ToolCallDelta(1, "time"), ToolCallDelta(1, arguments="{}")),
)


async def post(engine: FakeEngine, **body: Any) -> httpx.Response:
    async with client_of(engine) as client:
        return await client.post("/v1/chat/completions", json={"messages": HI, **body})


async def choice(engine: FakeEngine, **body: Any) -> Any:
    reply = await post(engine, **body)
    assert reply.status_code == 200, reply.text
    return reply.json()["choices"][0]


async def deltas(engine: FakeEngine, **body: Any) -> list[Any]:
    """Return (delta, finish reason) of each chunk of a stream."""
    reply = await post(engine, stream=True, **body)
    choices = [data["choices"][0] for _, data in sse_events(reply.text)[:-1]]
    return [(choice["delta"], choice["finish_reason"]) for choice in choices]


@pytest.mark.covers("structured-tools-agents/tool-fields")
async def test_tools_and_the_choice_among_them_reach_the_engine() -> None:
    engine = FakeEngine()
    await choice(engine, tools=[WEATHER, TIME])
    await choice(engine, tools=[WEATHER, TIME], tool_choice="none", parallel_tool_calls=False)
    await choice(engine, tools=[WEATHER, TIME], tool_choice=NAMED)
    tools = (
        Tool(name="weather", description="How it is.", parameters=PARAMETERS, definition=WEATHER),
        Tool(name="time", strict=True, definition=TIME),
    )
    prompts: Any = [request.prompt for request in engine.requests]
    assert [prompt.tools for prompt in prompts] == [tools] * 3
    chosen = [(prompt.tool_choice, prompt.tool_name, prompt.parallel_tool_calls) for prompt in prompts]
    assert chosen == [("auto", None, True), ("none", None, False), ("required", "time", True)]


@pytest.mark.covers("structured-tools-agents/calls-and-results")
async def test_calls_and_results_of_a_conversation_reach_the_engine() -> None:
    engine = FakeEngine()
    await choice(engine, messages=[*ASKED, RESULT])
    prompt: Any = engine.requests[0].prompt
    assert prompt.messages[1:] == (
        ChatMessage(
            role="assistant",
            content=None,
            tool_calls=(ToolCall(id="call_1", name="weather", arguments={"city": "Rome"}),),
        ),
        ChatMessage(role="tool", content="sunny", tool_call_id="call_1", name="weather"),
    )


async def test_calls_are_openais_and_come_with_the_text_before_them() -> None:
    answer = await choice(answering(*TWO_CALLS), tools=[WEATHER, TIME])
    calls = answer["message"].pop("tool_calls")
    assert answer["finish_reason"] == "tool_calls"
    assert answer["message"] == {"role": "assistant", "content": "Let me see.", "refusal": None}
    assert [(call["type"], call["function"]) for call in calls] == [
        ("function", {"name": "weather", "arguments": '{"city": "Rome"}'}),
        ("function", {"name": "time", "arguments": "{}"}),
    ]
    ids = {call["id"] for call in calls}
    assert len(ids) == 2
    assert all(each.startswith("call_") for each in ids)


async def test_an_answer_of_calls_alone_has_null_for_content_and_can_be_sent_back() -> None:
    engine = answering(*TWO_CALLS[3:])
    answer = await choice(engine, tools=[WEATHER, TIME])
    message = answer["message"]
    assert message["content"] is None
    results = [{"role": "tool", "tool_call_id": call["id"], "content": "fine"} for call in message["tool_calls"]]
    await choice(engine, messages=[*HI, message, *results], tools=[WEATHER, TIME])


@pytest.mark.covers("structured-tools-agents/openai-deltas")
async def test_a_call_begins_with_id_and_name_and_goes_on_with_arguments() -> None:
    received = await deltas(answering(*TWO_CALLS), tools=[WEATHER, TIME])
    ids = [entry.pop("id") for delta, _ in received for entry in delta.get("tool_calls", ()) if "id" in entry]
    assert len(set(ids)) == 2
    assert received == [
        ({"role": "assistant"}, None),
        ({"content": "Let me "}, None),
        ({"content": "see."}, None),
        ({}, None),
        (calls({"index": 0, "type": "function", "function": {"name": "weather", "arguments": ""}}), None),
        (calls({"index": 0, "function": {"arguments": "{"}}), None),
        (calls({"index": 0, "function": {"arguments": '"city": "Rome"}'}}), None),
        (calls({"index": 1, "type": "function", "function": {"name": "time", "arguments": ""}}), None),
        (calls({"index": 1, "function": {"arguments": "{}"}}), None),
        ({}, "tool_calls"),
    ]


def calls(entry: dict[str, Any]) -> dict[str, Any]:
    return {"tool_calls": [entry]}


REASONS: list[tuple[dict[str, Any], FinishReason, str]] = [
    ({}, FinishReason.EOS, "tool_calls"),
    ({"tool_choice": "required"}, FinishReason.GRAMMAR, "tool_calls"),
    ({"tool_choice": NAMED}, FinishReason.GRAMMAR, "stop"),
    ({"tool_choice": "required"}, FinishReason.LENGTH, "length"),
]


@pytest.mark.covers("structured-tools-agents/openai-deltas")
@pytest.mark.parametrize(("body", "reason", "expected"), REASONS)
async def test_finish_reasons_are_openais(body: dict[str, Any], reason: FinishReason, expected: str) -> None:
    engine = answering(*TWO_CALLS, reason=reason)
    assert (await choice(engine, tools=[TIME], **body))["finish_reason"] == expected
    assert (await deltas(engine, tools=[TIME], **body))[-1][1] == expected


async def test_an_answer_without_calls_stops_even_if_it_had_tools() -> None:
    engine = answering((ContentDelta("No."),))
    answer = await choice(engine, tools=[TIME])
    assert (answer["finish_reason"], answer["message"]["content"]) == ("stop", "No.")
    assert "tool_calls" not in answer["message"]
    assert (await deltas(engine, tools=[TIME]))[-1][1] == "stop"


async def test_choices_have_calls_of_their_own() -> None:
    engine = answering(*TWO_CALLS[3:])
    reply = await post(engine, tools=[WEATHER, TIME], n=2)
    ids = [[call["id"] for call in each["message"]["tool_calls"]] for each in reply.json()["choices"]]
    assert len({each for of_choice in ids for each in of_choice}) == 4


async def test_log_probabilities_of_calls_are_those_of_their_tokens() -> None:
    answer = await choice(answering(*TWO_CALLS), tools=[WEATHER, TIME], logprobs=True)
    assert len(answer["logprobs"]["content"]) == len(TWO_CALLS)
    reply = await post(answering(*TWO_CALLS), tools=[WEATHER, TIME], logprobs=True, stream=True)
    listed = [data["choices"][0]["logprobs"] for _, data in sse_events(reply.text)[:-1]]
    assert sum(len(each["content"]) for each in listed if each) == len(TWO_CALLS)


def assistant(**call: Any) -> list[dict[str, Any]]:
    return [*HI, {"role": "assistant", "content": None, "tool_calls": [CALL | call]}]


WRONG: list[tuple[dict[str, Any], str, str]] = [
    ({"tools": [TIME, TIME]}, "invalid_value", "tools[1].function.name"),
    ({"tools": [{"type": "function", "function": {"name": "a b"}}]}, "invalid_value", "tools[0].function.name"),
    ({"tools": [{"type": "custom", "function": {"name": "a"}}]}, "unsupported_value", "tools[0].type"),
    ({"tools": [TIME] * 257}, "array_above_max_length", "tools"),
    ({"tools": [{"type": "function"}]}, "missing_field", "tools[0].function"),
    ({"tools": [TIME], "tool_choice": "maybe"}, "invalid_value", "tool_choice"),
    ({"tools": [WEATHER], "tool_choice": NAMED}, "invalid_value", "tool_choice"),
    ({"tool_choice": NAMED}, "invalid_value", "tool_choice"),
    ({"tool_choice": "required"}, "conflicting_fields", "tool_choice"),
    ({"messages": [HI[0] | {"tool_calls": [CALL]}]}, "invalid_value", "messages[0].tool_calls"),
    (
        {"messages": assistant(function={"arguments": "{}"})},
        "missing_field",
        "messages[1].tool_calls[0].function.name",
    ),
    (
        {"messages": assistant(function={"name": "weather", "arguments": 5})},
        "invalid_type",
        "messages[1].tool_calls[0].function.arguments",
    ),
    ({"functions": [{"description": "x"}]}, "missing_field", "functions[0].name"),
    ({"functions": [{"name": "f"}], "function_call": {"name": "g"}}, "invalid_value", "function_call.name"),
    ({"functions": [{"name": "f"}], "function_call": "maybe"}, "invalid_value", "function_call"),
    ({"functions": [{"name": "f"}], "tools": [TIME]}, "conflicting_fields", "functions"),
    ({"tools": [TIME], "function_call": {"name": "time"}}, "conflicting_fields", "function_call"),
]


@pytest.mark.parametrize(("body", "code", "param"), WRONG, ids=lambda value: json.dumps(value)[:60])
async def test_wrong_tools_are_400_and_name_the_field(body: dict[str, Any], code: str, param: str) -> None:
    engine = FakeEngine()
    reply = await post(engine, **body)
    error = reply.json()["error"]
    assert (reply.status_code, error["code"], error["param"]) == (400, code, param)
    assert engine.requests == []


@pytest.mark.parametrize("param", ["tools", "structured_outputs"])
async def test_what_the_engine_refuses_about_tools_is_400_by_that_name(param: str) -> None:
    engine = FakeEngine()
    engine.refusal = InvalidRequestError("`structured_outputs` cannot be compiled: too large.", param=param)
    reply = await post(engine, tools=[TIME])
    assert (reply.status_code, reply.json()["error"]["param"]) == (400, "tools")


async def test_empty_tools_are_none() -> None:
    engine = FakeEngine()
    await choice(engine, tools=[], tool_choice="auto")
    prompt: Any = engine.requests[0].prompt
    assert prompt.tools == ()


async def test_tokenize_counts_tools_too() -> None:
    engine = FakeEngine()
    async with client_of(engine) as client:
        good = await client.post(
            "/tokenize", json={"messages": HI, "tools": [WEATHER], "chat_template_kwargs": {"a": 1}}
        )
        bad = await client.post("/tokenize", json={"prompt": "hi", "tools": [WEATHER]})
    assert good.status_code == 200
    assert (bad.status_code, bad.json()["error"]["param"]) == (400, "tools")
