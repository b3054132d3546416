"""History and foreign fields in `/v1/chat/completions`: what reaches the engine of messages that others wrote."""

from typing import Any

import pytest

from infer_engine.protocol import ChatMessage, ChatPrompt, ToolCall
from infer_proofs.server import FakeEngine
from infer_proofs.server.client import client_of

HI: dict[str, Any] = {"role": "user", "content": "hi"}
TIME = {"type": "function", "function": {"name": "time"}}
DATE = {"type": "function", "function": {"name": "date"}}
MARK = {"cache_control": {"type": "ephemeral"}}


async def ask(*messages: Any, **body: Any) -> tuple[int, Any, ChatPrompt | None]:
    """Return the status, the reply, and the prompt that reaches the engine, if any does."""
    engine = FakeEngine()
    async with client_of(engine) as client:
        reply = await client.post("/v1/chat/completions", json={"messages": list(messages), **body})
    prompt = engine.requests[0].prompt if engine.requests else None
    assert prompt is None or isinstance(prompt, ChatPrompt)
    return reply.status_code, reply.json(), prompt


async def prompt_of(*messages: Any, **body: Any) -> ChatPrompt:
    status, reply, prompt = await ask(*messages, **body)
    assert status == 200, reply
    assert prompt is not None
    return prompt


async def read(message: dict[str, Any]) -> ChatMessage:
    """Return what the engine gets of an earlier answer."""
    return (await prompt_of(HI, {"role": "assistant", **message}, HI)).messages[1]


ANSWERS: list[tuple[dict[str, Any], ChatMessage]] = [
    ({}, ChatMessage(role="assistant", content=None)),
    ({"content": None, "tool_calls": []}, ChatMessage(role="assistant", content=None)),
    ({"content": [], "tool_calls": None}, ChatMessage(role="assistant", content="")),
    ({"content": [{"type": "text", "text": ""}, "a", {"type": "output_text", "text": None}]},
     ChatMessage(role="assistant", content="a")),
    ({"content": None, "reasoning_content": "hm"}, ChatMessage(role="assistant", content=None, reasoning="hm")),
    ({"content": None, "refusal": "No."}, ChatMessage(role="assistant", content="No.")),
    ({"content": [{"type": "refusal", "refusal": "No."}]}, ChatMessage(role="assistant", content="No.")),
    ({"content": [{"type": "thinking", "thinking": [{"type": "text", "text": "hm"}]}, {"type": "text", "text": "a"}]},
     ChatMessage(role="assistant", content="a", reasoning="hm")),
    ({"content": "a", "function_call": {"name": "f", "arguments": "{}"}},
     ChatMessage(role="assistant", content="a", tool_calls=(ToolCall(id="call_1_0", name="f", arguments={}),))),
    ({"tool_calls": [{"id": "c", "type": "custom", "custom": {"name": "patch", "input": "*** x"}}]},
     ChatMessage(role="assistant", content=None, tool_calls=(
         ToolCall(id="c", name="patch", arguments={"input": "*** x"}),))),
]  # fmt: skip


@pytest.mark.covers("structured-tools-agents/history-not-judged")
@pytest.mark.parametrize(("message", "expected"), ANSWERS, ids=lambda value: str(value)[:50])
async def test_an_earlier_answer_is_taken_as_it_is(message: dict[str, Any], expected: ChatMessage) -> None:
    assert await read(message) == expected


@pytest.mark.parametrize("role", ["system", "developer", "user"])
@pytest.mark.parametrize("kind", ["thinking", "reasoning", "reasoning_text", "redacted_thinking"])
async def test_thinking_in_messages_of_others_is_passed_over(role: str, kind: str) -> None:
    parts = [{"type": kind, "thinking": "hm", "text": "hm", "data": "x"}, {"type": "text", "text": "Be brief."}]
    first = (await prompt_of({"role": role, "content": parts}, HI)).messages[0]
    assert (first.content, first.reasoning) == ("Be brief.", None)


FUNCTIONS: list[tuple[dict[str, Any], Any]] = [
    ({"name": "f", "arguments": '{"a": "onc'}, '{"a": "onc'),
    ({"name": "f", "arguments": {"a": 1}}, {"a": 1}),
    ({"name": "f", "arguments": None}, {}),
    ({"name": "f"}, {}),
    ({"name": "not a name", "arguments": "{}", "parsed_arguments": None}, {}),
]


@pytest.mark.parametrize(
    "call", [{"id": "c"}, {"id": ""}, {"id": None, "type": None}, {"index": 0, "extra_content": {}}]
)
@pytest.mark.parametrize(("function", "arguments"), FUNCTIONS, ids=str)
async def test_an_earlier_call_is_taken_as_it_is(
    call: dict[str, Any], function: dict[str, Any], arguments: object
) -> None:
    [made] = (await read({"tool_calls": [{**call, "function": function}]})).tool_calls
    assert (made.id, made.name, made.arguments) == (call.get("id") or "call_1_0", function["name"], arguments)


async def test_results_need_no_call_and_no_id() -> None:
    prompt = await prompt_of(
        HI,
        {"role": "tool", "content": "a", "tool_call_id": "nobody's"},
        {"role": "function", "content": None, "name": "f"},
        {"role": "tool", "content": [{"type": "text", "text": "b"}], "tool_call_id": ""},
    )
    assert [(message.role, message.content, message.name) for message in prompt.messages[1:]] == [
        ("tool", "a", None),
        ("tool", "", "f"),
        ("tool", "b", None),
    ]


FOREIGN: dict[str, Any] = {
    "id": 7, "opts": {"visible": False}, "metadata": {"a": 1}, "timestamp": 17, "provider_specific_fields": None,
    "reasoning_details": [{"type": "reasoning.text"}], "thinking_blocks": [], "annotations": [{"type": "url_citation"}],
    "images": [], "audio": None, "function_call": None, "tool_call_id": None, **MARK,
}  # fmt: skip


@pytest.mark.parametrize("role", ["system", "developer", "user", "assistant", "tool"])
async def test_foreign_fields_of_messages_are_passed_over(role: str) -> None:
    plain = {"role": role, "content": "x"}
    assert await prompt_of(HI, plain | FOREIGN) == await prompt_of(HI, plain)


async def test_foreign_fields_of_parts_calls_and_tools_are_passed_over() -> None:
    def body(foreign: dict[str, Any]) -> dict[str, Any]:
        function = {"name": "time", "arguments": "{}", **foreign}
        call = {"id": "c", "type": "function", "function": function, **foreign}
        part = {"type": "text", "text": "x", **foreign}
        marks = {key: value for key, value in foreign.items() if key in MARK}  # the rest the template gets
        tool = {"type": "function", "function": {"name": "time", **marks}, **marks}
        choice = {"type": "function", "function": {"name": "time", **foreign}, **foreign}
        messages = [{"role": "user", "content": [part]}, {"role": "assistant", "tool_calls": [call]}]
        return {"messages": messages, "tools": [tool], "tool_choice": choice}

    foreign = {**MARK, "thought_signature": "x", "annotations": {"title": "t"}, "index": 3}
    assert await prompt_of(**body(foreign)) == await prompt_of(**body({}))


@pytest.mark.parametrize(
    ("message", "place"),
    [
        ({"role": "user", "text": "hi"}, "messages[1].content"),
        ({"role": "user", "content": "x", "images": ["AA=="]}, "messages[1].images"),
        ({"role": "assistant", "content": None, "audio": {"id": "audio_1"}}, "messages[1].audio"),
        ({"role": "user", "content": "x", "reasoning_content": "y"}, "messages[1].reasoning_content"),
        ({"role": "user", "content": [{"type": "refusal", "refusal": "x"}]}, "messages[1].content[0]"),
        ({"role": "user", "content": [{"type": "text", "text": "x", "file": {}}]}, "messages[1].content[0].file"),
        ({"role": "assistant", "tool_calls": [{"id": "c", "type": "custom"}]}, "messages[1].tool_calls[0].custom"),
    ],
)
async def test_what_would_be_lost_is_refused_by_its_place(message: dict[str, Any], place: str) -> None:
    status, reply, prompt = await ask(HI, message)
    assert (status, reply["error"]["param"], prompt) == (400, place, None)
    assert f"`{place}" in reply["error"]["message"]


@pytest.mark.covers("structured-tools-agents/allowed-tools")
@pytest.mark.parametrize(
    "choice",
    [
        {"type": "allowed_tools", "mode": "auto", "tools": [{"type": "function", "name": "time"}]},
        {"type": "allowed_tools", "mode": "auto", "tools": [TIME]},
        {"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": [TIME]}},
    ],
)
async def test_allowed_tools_leave_the_prompt_as_it_is(choice: dict[str, Any]) -> None:
    prompt = await prompt_of(HI, tools=[TIME, DATE], tool_choice=choice)
    assert ([tool.name for tool in prompt.tools], prompt.allowed_tools) == (["time", "date"], ("time",))


@pytest.mark.parametrize(
    ("choice", "place"),
    [
        ({"type": "allowed_tools", "mode": "auto"}, "tool_choice.tools"),
        ({"type": "allowed_tools", "allowed_tools": {"mode": "auto"}}, "tool_choice.allowed_tools.tools"),
        ({"type": "allowed_tools", "mode": "auto", "tools": [{"name": "time"}]}, "tool_choice.tools[0].type"),
        ({"type": "allowed_tools", "mode": "auto", "tools": [{"type": "function"}]}, "tool_choice.tools[0].function"),
        ({"type": "allowed_tools", "mode": "auto", "tools": [{"type": "function", "name": "x"}]},
         "tool_choice.tools[0].name"),
        ({"type": "allowed_tools", "mode": "required", "tools": []}, "tool_choice"),
        ({"type": "function"}, "tool_choice.function"),
        ({"type": "function", "function": {}}, "tool_choice.function.name"),
    ],
)  # fmt: skip
async def test_a_choice_that_is_wrong_is_refused_by_its_place(choice: dict[str, Any], place: str) -> None:
    status, reply, _ = await ask(HI, tools=[TIME], tool_choice=choice)
    assert (status, reply["error"]["param"]) == (400, place)


CONTINUED = {"role": "assistant", "content": "It is"}


@pytest.mark.parametrize(
    ("last", "body"),
    [
        (CONTINUED, {"continue_final_message": True, "add_generation_prompt": False}),
        (CONTINUED, {"continue_final_message": True}),
        (CONTINUED | {"prefix": True}, {}),
        (CONTINUED | {"partial": True}, {}),
    ],
)
async def test_a_last_answer_is_continued_where_that_is_asked_for(last: dict[str, Any], body: dict[str, Any]) -> None:
    prompt = await prompt_of(HI, last, **body)
    assert (prompt.continue_final_message, prompt.add_generation_prompt) == (True, False)


async def test_a_last_answer_is_not_continued_otherwise() -> None:
    for body in ({}, {"add_generation_prompt": False}):
        prompt = await prompt_of(HI, CONTINUED, **body)
        assert (prompt.continue_final_message, prompt.add_generation_prompt) == (False, not body)


@pytest.mark.parametrize(
    ("messages", "body", "param"),
    [
        ([HI], {"continue_final_message": True}, "continue_final_message"),
        ([HI, {"role": "assistant", "tool_calls": [{"function": {"name": "f"}}]}], {"continue_final_message": True},
         "continue_final_message"),
        ([HI, CONTINUED], {"continue_final_message": True, "add_generation_prompt": True}, "add_generation_prompt"),
    ],
)  # fmt: skip
async def test_what_cannot_be_continued_is_refused(messages: list[Any], body: dict[str, Any], param: str) -> None:
    status, reply, _ = await ask(*messages, **body)
    assert (status, reply["error"]["param"]) == (400, param)


HEADER = "x-anthropic-billing-header: cc_version=2.1.0; cc_entrypoint=cli; cch=%s;"


@pytest.mark.parametrize("text", [HEADER + "\n", HEADER])
async def test_the_header_that_a_proxy_passes_on_is_no_part_of_the_prompt(text: str) -> None:
    as_text = {"role": "system", "content": text % "a1" + "Be nice."}
    parts = [{"type": "text", "text": text % "b2"}, {"type": "text", "text": "Be nice.", **MARK}]
    for system in (as_text, {"role": "system", "content": parts}):
        assert (await prompt_of(system, HI)).messages[0].content == "Be nice."


@pytest.mark.parametrize(
    ("choice", "expected"),
    [
        ("any", ("required", None)),
        ({"type": "auto"}, ("auto", None)),
        ({"type": "any"}, ("required", None)),
        ({"type": "function", "name": "time"}, ("required", "time")),
    ],
)
async def test_words_and_shapes_of_other_apis_are_taken(choice: object, expected: tuple[str, str | None]) -> None:
    prompt = await prompt_of(HI, tools=[TIME, DATE], tool_choice=choice)
    assert (prompt.tool_choice, prompt.tool_name) == expected
