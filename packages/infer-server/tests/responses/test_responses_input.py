"""The input of `/v1/responses`: the conversation that items make, and what is wrong with others."""

from typing import Any

import httpx
import pytest

from infer_engine.protocol import ChatMessage, ToolCall
from infer_proofs.server import FakeEngine
from infer_proofs.server.client import client_of
from infer_server.api.carried_thinking import carried_thinking

HI = {"role": "user", "content": "hi"}
CALL = {"type": "function_call", "call_id": "c1", "name": "weather", "arguments": '{"city": "Rome"}'}
OTHER_CALL = CALL | {"call_id": "c2", "arguments": ""}
RESULT = {"type": "function_call_output", "call_id": "c1", "output": "sunny"}
OTHER_RESULT = RESULT | {
    "call_id": "c2",
    "output": [{"type": "input_text", "text": "rai"}, {"type": "text", "text": "n"}],
}
THOUGHT = {"type": "reasoning", "summary": [], "content": [{"type": "reasoning_text", "text": "Well."}]}
TEXT = {
    "type": "message",
    "role": "assistant",
    "id": "msg_1",
    "content": [{"type": "output_text", "text": "Let me see."}],
}

HI_MESSAGE = ChatMessage(role="user", content="hi")
CALLED = ToolCall(id="c1", name="weather", arguments={"city": "Rome"})
OTHER_CALLED = ToolCall(id="c2", name="weather", arguments={})
RESULT_MESSAGE = ChatMessage(role="tool", content="sunny", tool_call_id="c1", name="weather")


async def post(engine: FakeEngine, **body: Any) -> httpx.Response:
    async with client_of(engine) as client:
        return await client.post("/v1/responses", json=body)


async def messages_of(*items: dict[str, Any], **body: Any) -> list[ChatMessage]:
    """Return the messages that reach the engine."""
    engine = FakeEngine()
    reply = await post(engine, input=list(items), **body)
    assert reply.status_code == 200, reply.text
    prompt: Any = engine.requests[0].prompt
    return list(prompt.messages)


async def test_a_text_is_a_users_message_and_instructions_are_the_systems() -> None:
    engine = FakeEngine()
    await post(engine, input="hi", instructions="Be nice.")
    prompt: Any = engine.requests[0].prompt
    assert prompt.messages == (ChatMessage(role="system", content="Be nice."), HI_MESSAGE)


async def test_messages_have_texts_or_parts_and_every_role_of_openai() -> None:
    parts = [{"type": "input_text", "text": "h"}, {"type": "text", "text": "i"}]
    found = await messages_of(
        {"role": "system", "content": "a"},
        {"type": "message", "role": "user", "content": parts},
        {"role": "developer", "content": "b"},
        {"type": None, "role": "assistant", "content": "c"},
    )
    assert found == [
        ChatMessage(role="system", content="a"),
        HI_MESSAGE,
        ChatMessage(role="system", content="b"),
        ChatMessage(role="assistant", content="c"),
    ]


async def test_system_messages_at_the_beginning_are_one_as_many_templates_take_no_second() -> None:
    found = await messages_of(
        {"role": "developer", "content": "b"}, {"role": "system", "content": "c"}, HI, instructions="a"
    )
    assert found == [ChatMessage(role="system", content="a\n\nb\n\nc"), HI_MESSAGE]


async def test_reasoning_text_and_calls_of_one_answer_are_one_message() -> None:
    found = await messages_of(HI, THOUGHT, TEXT, CALL, OTHER_CALL, RESULT, OTHER_RESULT)
    assert found[1:] == [
        ChatMessage(role="assistant", content="Let me see.", reasoning="Well.", tool_calls=(CALLED, OTHER_CALLED)),
        RESULT_MESSAGE,
        ChatMessage(role="tool", content="rain", tool_call_id="c2", name="weather"),
    ]


async def test_calls_without_a_text_are_a_message_too() -> None:
    found = await messages_of(HI, CALL, RESULT, HI)
    assert found[1] == ChatMessage(role="assistant", content="", tool_calls=(CALLED,))


async def test_a_text_after_calls_joins_them_as_results_must_follow_calls() -> None:
    found = await messages_of(HI, CALL, TEXT, RESULT)
    assert found[1:] == [ChatMessage(role="assistant", content="Let me see.", tool_calls=(CALLED,)), RESULT_MESSAGE]


async def test_what_comes_after_results_or_after_a_text_is_another_message() -> None:
    found = await messages_of(HI, CALL, RESULT, THOUGHT, OTHER_CALL, OTHER_RESULT, TEXT, THOUGHT, TEXT)
    assert [(message.role, message.reasoning) for message in found[1:]] == [
        ("assistant", None),
        ("tool", None),
        ("assistant", "Well."),
        ("tool", None),
        ("assistant", None),
        ("assistant", "Well."),
    ]


async def test_two_messages_of_the_assistant_stay_two() -> None:
    assert [message.content for message in await messages_of(HI, TEXT, TEXT, HI)] == [
        "hi",
        "Let me see.",
        "Let me see.",
        "hi",
    ]


async def test_reasoning_is_its_content_or_else_its_summary() -> None:
    summary = {"type": "reasoning", "summary": [{"type": "summary_text", "text": text} for text in ("a", "b")]}
    both = summary | {"content": THOUGHT["content"]}
    found = await messages_of(summary, TEXT, HI, both, TEXT)
    assert [message.reasoning for message in found] == ["a\n\nb", None, "Well."]


async def test_reasoning_is_read_from_its_encrypted_content() -> None:
    carried: dict[str, Any] = {"type": "reasoning", "summary": [], "encrypted_content": carried_thinking("Well.")}
    assert [message.reasoning for message in await messages_of(carried, TEXT)] == ["Well."]


async def test_reasoning_that_cannot_be_read_or_led_to_nothing_is_left_out() -> None:
    encrypted: dict[str, Any] = {"type": "reasoning", "summary": [], "content": None, "encrypted_content": "gAAA"}
    assert await messages_of(encrypted, TEXT, THOUGHT, HI) == [
        ChatMessage(role="assistant", content="Let me see."),
        HI_MESSAGE,
    ]


async def test_items_of_other_types_are_dropped_whatever_they_have() -> None:
    others: list[dict[str, Any]] = [
        {"type": "web_search_call", "id": "ws_1", "status": "completed", "action": {"type": "search"}},
        {"type": "file_search_call", "call_id": 5, "arguments": {"query": "x"}},
        {"type": "additional_tools", "tools": 5},
        {"type": "compaction", "content": 1, "role": ["x"]},
    ]
    found = await messages_of(HI, CALL, *others, OTHER_CALL, RESULT, OTHER_RESULT)
    assert found[1].tool_calls == (CALLED, OTHER_CALLED)
    assert len(found) == 4


def image(role: str = "user", **part: Any) -> dict[str, Any]:
    return {"role": role, "content": [{"type": "input_text", "text": "x"}, part]}


WRONG: list[tuple[list[Any] | None, str, str]] = [
    (None, "missing_field", "input"),
    ([], "empty_prompt", "input"),
    ([1], "invalid_type", "input[0]"),
    ([{"type": "web_search_call"}], "empty_prompt", "input"),
    ([THOUGHT], "empty_prompt", "input"),
    ([{"content": "x"}], "missing_field", "input[0].role"),
    ([HI, {"role": "user"}], "missing_field", "input[1].content"),
    ([HI, {"role": "robot", "content": "x"}], "invalid_value", "input[1].role"),
    ([HI | {"type": 5}], "invalid_type", "input[0].type"),
    ([HI | {"content": 5}], "invalid_type", "input[0].content"),
    ([HI | {"content": [{"type": "input_text"}]}], "missing_field", "input[0].content[0].text"),
    ([HI | {"content": [{"type": "input_text", "text": 1}]}], "invalid_type", "input[0].content[0].text"),
    ([HI | {"content": [{"text": "x"}]}], "missing_field", "input[0].content[0].type"),
    ([image(type="input_image", image_url="http://x")], "unsupported_value", "input[0].content[1].type"),
    ([image(type="input_file", file_id="x")], "unsupported_value", "input[0].content[1].type"),
    ([{"type": "item_reference", "id": "msg_1"}], "item_not_found", "input[0]"),
    ([HI, {"type": "input_image", "image_url": "http://x"}], "unsupported_value", "input[1].type"),
    ([HI, {"type": "input_text", "text": "x"}], "unsupported_value", "input[1].type"),
    ([CALL | {"call_id": 5}], "invalid_type", "input[0].call_id"),
    ([CALL | {"name": None}], "invalid_type", "input[0].name"),
    ([CALL | {"arguments": 5}], "invalid_type", "input[0].arguments"),
    ([HI, {"type": "computer_call_output", "output": {}}], "unsupported_value", "input[1].type"),
    ([HI, {"type": "custom_tool_call_output", "call_id": "c1"}], "missing_field", "input[1].output"),
]


@pytest.mark.parametrize(("items", "code", "param"), WRONG, ids=lambda value: str(value)[:60])
async def test_wrong_items_are_400_and_name_the_place(items: list[Any] | None, code: str, param: str) -> None:
    engine = FakeEngine()
    reply = await post(engine, input=items)
    error = reply.json()["error"]
    assert (reply.status_code, error["code"], error["param"]) == (400, code, param)
    assert engine.requests == []


@pytest.mark.parametrize("kind", ["input_image", "input_file"])
async def test_a_part_that_is_no_text_is_named(kind: str) -> None:
    reply = await post(FakeEngine(), input=[image(type=kind)])
    assert f"`input[0].content[1].type` is `{kind}`, but" in reply.json()["error"]["message"]


@pytest.mark.parametrize(
    ("output", "text"),
    [
        ({"address": "Main 3"}, '{"address":"Main 3"}'),
        ([{"id": 1}, {"id": 2}], '[{"id":1},{"id":2}]'),
        (7, "7"),
        (None, ""),
        (image(type="input_image", image_url="http://x")["content"], "x[image omitted: this model reads text only]"),
    ],
)
async def test_a_result_may_be_any_json(output: object, text: str) -> None:
    assert (await messages_of(HI, CALL, RESULT | {"output": output}))[2].content == text


async def test_a_result_may_have_no_output_and_items_may_be_thousands() -> None:
    result = {"type": "function_call_output", "call_id": "c1"}
    found = await messages_of(*[HI | {"content": ""}] * 5000, CALL, result)
    assert (len(found), found[-1].content) == (5002, "")


async def test_many_parts_are_read_and_long_values_are_not_quoted_whole() -> None:
    many = [{"type": "input_text", "text": ""}] * 100_000
    assert (await messages_of({"role": "user", "content": many}))[0].content == ""
    reply = await post(FakeEngine(), input=[{"role": "user", "content": [{"type": "\x01" * 5000}]}])
    assert len(reply.json()["error"]["message"].encode()) <= 1024
