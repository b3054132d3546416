"""`POST /v1/messages`: Anthropic's own client in an agent's loop, blocks, events, errors."""

from collections.abc import AsyncIterator
from typing import Any

import anthropic
import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from infer_engine.protocol import (
    AnswerDelta,
    ChatMessage,
    ContentDelta,
    EngineUnavailableError,
    FinishReason,
    QueueFullError,
    ReasoningDelta,
    RequestFailure,
    StructuredOutputs,
    Tool,
    ToolCall,
    ToolCallDelta,
)
from infer_server import ServerSettings
from infer_server.testing import FakeEngine, Script, running_server, sse_events
from infer_server.testing.client import client_of

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


@pytest.fixture
async def client() -> AsyncIterator[tuple[anthropic.AsyncAnthropic, FakeEngine]]:
    engine = answering(*ANSWER)
    async with running_server(engine) as url, anthropic.AsyncAnthropic(base_url=url, api_key="-") as client:
        yield client, engine


@pytest.mark.parametrize("streams", [False, True])
async def test_anthropics_client_goes_through_an_agents_loop(
    client: tuple[anthropic.AsyncAnthropic, FakeEngine], *, streams: bool
) -> None:
    sdk, engine = client
    messages = list(HI)
    for _ in range(2):
        body: Any = {
            "model": "fake-model",
            "max_tokens": 50,
            "messages": messages,
            "tools": TOOLS,
            "system": "Be nice.",
        }
        if streams:
            async with sdk.messages.stream(**body) as stream:
                answer: Any = await stream.get_final_message()
        else:
            answer = await sdk.messages.create(**body)
        assert answer.stop_reason == "tool_use"
        assert [block.type for block in answer.content] == ["thinking", "text", "tool_use", "tool_use"]
        assert [block.input for block in answer.content[2:]] == [{"city": "Rome"}, {}]
        results = [{"type": "tool_result", "tool_use_id": block.id, "content": "ok"} for block in answer.content[2:]]
        messages += [{"role": "assistant", "content": answer.content}, {"role": "user", "content": results}]
    prompt: Any = engine.requests[-1].prompt
    assert [each.role for each in prompt.messages] == ["system", "user", "assistant", "tool", "tool"]
    thought, *_ = [each for each in prompt.messages if each.role == "assistant"]
    assert (thought.reasoning, thought.content, len(thought.tool_calls)) == ("Hm", "Let me see.", 2)
    assert prompt.messages[3].tool_call_id == thought.tool_calls[0].id
    assert [tool.name for tool in prompt.tools] == ["weather", "time"]


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


PARTS = st.lists(
    st.one_of(
        st.builds(ReasoningDelta, st.text(min_size=1)),
        st.builds(ContentDelta, st.text(min_size=1)),
        st.just(ToolCallDelta(0)),
    ),
    max_size=6,
)


def with_calls_numbered(parts: list[AnswerDelta]) -> list[AnswerDelta]:
    """Return the parts with a whole call in the place of each mark of one."""
    found: list[AnswerDelta] = []
    number = 0
    for part in parts:
        if isinstance(part, ToolCallDelta):
            found += [ToolCallDelta(number, "weather"), *(ToolCallDelta(number, arguments=each) for each in ("{", "}"))]
            number += 1
        else:
            found.append(part)
    return found


@given(parts=PARTS.map(with_calls_numbered), cuts=st.lists(st.booleans(), min_size=24, max_size=24))
async def test_events_make_up_the_whole_message_however_an_answer_is_cut(
    parts: list[AnswerDelta], cuts: list[bool]
) -> None:
    steps: list[list[AnswerDelta]] = [[]]
    for part, cut in zip(parts, cuts, strict=False):
        steps += [[]] if cut else []
        steps[-1].append(part)
    engine = answering(*map(tuple, steps))
    whole = (await message(engine, tools=TOOLS))["content"]
    built: list[Any] = []
    for _, data in sse_events((await post(engine, tools=TOOLS, stream=True)).text):
        match data["type"]:
            case "content_block_start":
                built.append(data["content_block"] | {"pieces": ""})
            case "content_block_delta":
                built[data["index"]]["pieces"] += list(data["delta"].values())[1]
    streamed = [(each["type"], each["pieces"]) for each in built]
    assert streamed == [
        (each["type"], each.get("text", each.get("thinking", "{}" if "input" in each else None))) for each in whole
    ]


STOPS: list[tuple[FinishReason, dict[str, Any], tuple[str, str | None]]] = [
    (FinishReason.EOS, {}, ("tool_use", None)),
    (FinishReason.GRAMMAR, {}, ("tool_use", None)),
    (FinishReason.LENGTH, {}, ("max_tokens", None)),
    (FinishReason.STOP, {"stop_sequences": ["a"]}, ("stop_sequence", "a")),
    (FinishReason.STOP, {"stop_sequences": ["a", "b"]}, ("stop_sequence", None)),
]


@pytest.mark.parametrize(("reason", "body", "expected"), STOPS)
async def test_stop_reasons(reason: FinishReason, body: dict[str, Any], expected: tuple[str, str | None]) -> None:
    answer = await message(answering(*ANSWER, reason=reason), **body)
    assert (answer["stop_reason"], answer["stop_sequence"]) == expected


async def test_a_call_that_is_cut_off_has_no_input() -> None:
    answer = await message(answering(*ANSWER[:3], reason=FinishReason.LENGTH))
    assert answer["content"][-1]["input"] == {}
    assert answer["stop_reason"] == "max_tokens"


async def test_blocks_reach_the_engine_as_a_conversation() -> None:
    engine = FakeEngine()
    use = {"type": "tool_use", "id": "t1", "name": "weather", "input": {"city": "Rome"}}
    messages = [
        {
            "role": "user",
            "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b", "cache_control": {}}],
        },
        {
            "role": "assistant",
            "content": [
                {"type": "thinking", "thinking": "hm", "signature": "s"},
                {"type": "redacted_thinking", "data": "x"},
                use,
            ],
        },
        {
            "role": "user",
            "content": [
                {
                    "type": "tool_result",
                    "tool_use_id": "t1",
                    "content": [{"type": "text", "text": "no"}],
                    "is_error": True,
                },
                {"type": "text", "text": "and?"},
            ],
        },
    ]
    await message(
        engine, messages=messages, system=[{"type": "text", "text": "x", "cache_control": {"type": "ephemeral"}}]
    )
    prompt: Any = engine.requests[0].prompt
    assert prompt.messages == (
        ChatMessage(role="system", content="x"),
        ChatMessage(role="user", content="ab"),
        ChatMessage(
            role="assistant",
            content="",
            reasoning="hm",
            tool_calls=(ToolCall(id="t1", name="weather", arguments={"city": "Rome"}),),
        ),
        ChatMessage(role="tool", content="Error: no", tool_call_id="t1"),
        ChatMessage(role="user", content="and?"),
    )


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


async def test_what_clients_send_beside_is_ignored() -> None:
    engine = FakeEngine()
    async with client_of(engine) as client:
        reply = await client.post(
            "/v1/messages?beta=true",
            json={
                "max_tokens": 9,
                "messages": HI,
                "context_management": {},
                "metadata": {"user_id": "u"},
                "mcp_servers": [],
            },
            headers={"anthropic-version": "2023-06-01", "anthropic-beta": "x"},
        )
        assert (await client.head("/")).status_code == 200
    assert reply.status_code == 200


WRONG: list[tuple[dict[str, Any], int, str, str]] = [
    ({"max_tokens": None}, 400, "invalid_request_error", "max_tokens"),
    ({"max_tokens": 0}, 400, "invalid_request_error", "max_tokens"),
    ({"messages": []}, 400, "invalid_request_error", "messages"),
    ({"messages": [{"role": "robot", "content": "x"}]}, 400, "invalid_request_error", "messages[0].role"),
    (
        {"messages": [*HI, {"role": "assistant", "content": "Well,"}]},
        400,
        "invalid_request_error",
        "cannot be continued",
    ),
    (
        {"messages": [{"role": "user", "content": [{"type": "image", "source": {}}]}]},
        400,
        "invalid_request_error",
        "image",
    ),
    ({"messages": [{"role": "user", "content": [{"type": "text"}]}]}, 400, "invalid_request_error", "text"),
    (
        {"messages": [{"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t9", "content": "x"}]}]},
        400,
        "invalid_request_error",
        "t9",
    ),
    ({"tools": [TOOLS[0], TOOLS[0]]}, 400, "invalid_request_error", "tools[1].name"),
    ({"tool_choice": {"type": "maybe"}}, 400, "invalid_request_error", "tool_choice"),
    ({"tool_choice": {"type": "any"}}, 400, "invalid_request_error", "tool_choice"),
    ({"tools": TOOLS, "tool_choice": {"type": "tool", "name": "x"}}, 400, "invalid_request_error", "tool_choice.name"),
    ({"temperature": -1}, 400, "invalid_request_error", "temperature"),
    ({"stop_sequences": [""]}, 400, "invalid_request_error", "stop_sequences"),
    ({"output_config": {"format": {"type": "xml"}}}, 400, "invalid_request_error", "output_config"),
    ({"model": "other"}, 404, "not_found_error", "other"),
    ({"messages": [{"role": "user", "content": "x" * 600}]}, 400, "invalid_request_error", "maximum context length"),
]


@pytest.mark.parametrize(("body", "status", "kind", "words"), WRONG, ids=lambda value: str(value)[:50])
async def test_errors_have_anthropics_envelope(body: dict[str, Any], status: int, kind: str, words: str) -> None:
    reply = await post(FakeEngine(), **body)
    found = reply.json()
    assert (reply.status_code, found["type"], found["error"]["type"]) == (status, "error", kind)
    assert set(found["error"]) == {"type", "message"}
    assert words in found["error"]["message"]


@pytest.mark.parametrize("refusal", [QueueFullError("Full."), EngineUnavailableError("Stopped.")])
async def test_a_server_that_is_full_is_overloaded(refusal: Exception) -> None:
    engine = FakeEngine()
    engine.refusal = refusal
    reply = await post(engine)
    assert (reply.status_code, reply.json()["error"]["type"]) == (529, "overloaded_error")
    assert reply.headers["retry-after"]


async def test_a_failure_is_an_error_or_ends_the_stream_with_one() -> None:
    engine = answering((ContentDelta("Ye"),), failure=RequestFailure(message="It broke.", code="step_failed"))
    reply = await post(engine)
    assert (reply.status_code, reply.json()["error"]) == (500, {"type": "api_error", "message": "It broke."})
    *_, (name, data) = sse_events((await post(engine, stream=True)).text)
    assert (name, data) == ("error", {"type": "error", "error": {"type": "api_error", "message": "It broke."}})


async def test_keys_come_in_either_header_and_errors_keep_the_envelope() -> None:
    settings = ServerSettings(api_key=("secret",))
    async with client_of(FakeEngine(), settings) as client:
        body = {"max_tokens": 9, "messages": HI}
        for headers, status in (
            ({"x-api-key": "secret"}, 200),
            ({"Authorization": "Bearer secret"}, 200),
            ({"Authorization": "Bearer secret", "x-api-key": "secret"}, 200),
            ({"Authorization": "Bearer secret", "x-api-key": "other"}, 401),
            ({"x-api-key": "other"}, 401),
            ({}, 401),
        ):
            reply = await client.post("/v1/messages", json=body, headers=headers)
            assert reply.status_code == status, headers
            if status == 401:
                assert reply.json()["error"]["type"] == "authentication_error"


async def test_tokens_are_counted_without_generating() -> None:
    engine = FakeEngine()
    async with client_of(engine) as client:
        reply = await client.post("/v1/messages/count_tokens", json={"messages": HI, "system": "abc", "tools": TOOLS})
    assert reply.json() == {"input_tokens": 5}
    assert engine.requests == []
