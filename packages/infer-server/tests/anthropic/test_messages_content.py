"""The blocks of `/v1/messages`: what they become in the conversation that the engine gets, and which are refused."""

from typing import Any

import httpx
import pytest

from infer_engine.protocol import ChatMessage, Tool, ToolCall
from infer_proofs.server import FakeEngine
from infer_proofs.server.client import client_of
from infer_server.api.carried_thinking import carried_thinking

HI: list[Any] = [{"role": "user", "content": "hi"}]
USE = {"type": "tool_use", "id": "t1", "name": "weather", "input": {"city": "Rome"}}
ASKED = [*HI, {"role": "assistant", "content": [USE]}]
IMAGE = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "AA=="}}
DOCUMENT = {"type": "document", "source": {"type": "url", "url": "http://169.254.169.254/x.pdf"}, "title": "y"}
SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}}


def text(words: str) -> dict[str, str]:
    return {"type": "text", "text": words}


def result(content: object, **more: object) -> dict[str, object]:
    return {"type": "tool_result", "tool_use_id": "t1", "content": content, **more}


async def post(engine: FakeEngine, **body: Any) -> httpx.Response:
    async with client_of(engine) as client:
        return await client.post("/v1/messages", json={"max_tokens": 9, "messages": HI, **body})


async def prompt_for(**body: Any) -> Any:
    """Return the prompt that the engine gets."""
    engine = FakeEngine()
    reply = await post(engine, **body)
    assert reply.status_code == 200, reply.text
    return engine.requests[0].prompt


async def refusal_of(**body: Any) -> str:
    """Return the message of the error, after checking that nothing reached the engine."""
    engine = FakeEngine()
    reply = await post(engine, **body)
    assert (reply.status_code, reply.json()["error"]["type"]) == (400, "invalid_request_error")
    assert engine.requests == []
    message: str = reply.json()["error"]["message"]
    return message


@pytest.mark.parametrize(
    "system", ["Be nice.", [text("Be "), text("nice.") | {"cache_control": {"type": "ephemeral"}}]]
)
async def test_system_is_the_first_message(system: object) -> None:
    prompt = await prompt_for(system=system)
    assert prompt.messages == (ChatMessage(role="system", content="Be nice."), ChatMessage(role="user", content="hi"))


@pytest.mark.parametrize("system", [None, "", []])
async def test_without_a_system_there_is_no_message_of_it(system: object) -> None:
    assert [message.role for message in (await prompt_for(system=system)).messages] == ["user"]


@pytest.mark.parametrize("content", ["Be brief.", [text("Be "), text("brief.")]])
async def test_system_may_speak_later_too(content: object) -> None:
    prompt = await prompt_for(messages=[*HI, {"role": "system", "content": content}])
    assert prompt.messages[1] == ChatMessage(role="system", content="Be brief.")


RESULTS: list[tuple[dict[str, object], str]] = [
    (result("sunny"), "sunny"),
    (result([text("sun"), text("ny")]), "sunny"),
    (result([]), ""),
    (result(None), ""),
    ({"type": "tool_result", "tool_use_id": "t1"}, ""),
    (result("no such city", is_error=True), "Error: no such city"),
    (result("sunny", is_error=False), "sunny"),
    ({"type": "tool_result", "tool_use_id": "t1", "is_error": True}, "Error: "),
]


@pytest.mark.parametrize(("block", "content"), RESULTS)
async def test_result_of_a_tool_is_a_message_of_its_own(block: dict[str, object], content: str) -> None:
    prompt = await prompt_for(messages=[*ASKED, {"role": "user", "content": [block]}])
    assert prompt.messages[2:] == (ChatMessage(role="tool", content=content, tool_call_id="t1", name="weather"),)


async def test_text_beside_results_comes_after_them() -> None:
    asked = [*HI, {"role": "assistant", "content": [USE, USE | {"id": "t2"}]}]
    blocks = [text("so"), result("a"), text(", well"), result("b", tool_use_id="t2")]
    prompt = await prompt_for(messages=[*asked, {"role": "user", "content": blocks}])
    assert prompt.messages[2:] == (
        ChatMessage(role="tool", content="a", tool_call_id="t1", name="weather"),
        ChatMessage(role="tool", content="b", tool_call_id="t2", name="weather"),
        ChatMessage(role="user", content="so, well"),
    )


async def test_thinking_of_others_is_passed_over() -> None:
    blocks = [{"type": "thinking", "thinking": "hm"}, {"type": "redacted_thinking", "data": "x"}, text("Be brief.")]
    prompt = await prompt_for(system=blocks, messages=[{"role": "user", "content": blocks}])
    assert prompt.messages == tuple(ChatMessage(role=role, content="Be brief.") for role in ("system", "user"))


async def test_answer_of_the_assistant_comes_back_with_its_calls_and_thoughts() -> None:
    blocks = [
        {"type": "thinking", "thinking": "Hm", "signature": "abc"},
        {"type": "redacted_thinking", "data": "xyz"},
        {"type": "thinking", "thinking": "m."},
        text("Let me see."),
        USE,
        {"type": "tool_use", "id": "t2", "name": "time"},
    ]
    prompt = await prompt_for(messages=[*HI, {"role": "assistant", "content": blocks}, *HI])
    calls = (
        ToolCall(id="t1", name="weather", arguments={"city": "Rome"}),
        ToolCall(id="t2", name="time", arguments={}),
    )
    assert prompt.messages[1] == ChatMessage(
        role="assistant", content="Let me see.", reasoning="Hmm.", tool_calls=calls
    )


@pytest.mark.parametrize(
    ("signature", "reasoning"),
    [(carried_thinking("Hm."), "Hm."), ("EqQBCkgIARABGAIiQ", None), (carried_thinking("Hm.")[:-1] + "!", None)],
    ids=["of this server", "of another", "damaged"],
)
async def test_thinking_without_its_text_is_read_from_its_signature(signature: str, reasoning: str | None) -> None:
    blocks = [{"type": "thinking", "thinking": "", "signature": signature}, text("Yes.")]
    prompt = await prompt_for(messages=[*HI, {"role": "assistant", "content": blocks}, *HI])
    assert prompt.messages[1] == ChatMessage(role="assistant", content="Yes.", reasoning=reasoning)


@pytest.mark.parametrize(
    "block",
    [
        {"type": "server_tool_use", "id": "srvtoolu_1", "name": "web_search", "input": {"query": "x"}},
        {"type": "web_search_tool_result", "tool_use_id": "srvtoolu_1", "content": [{"type": "web_search_result"}]},
        {"type": "web_fetch_tool_result", "tool_use_id": "srvtoolu_1", "content": {"type": "web_fetch_result"}},
        {"type": "bash_code_execution_tool_result", "tool_use_id": "srvtoolu_1", "content": {"stdout": ""}},
        {"type": "mcp_tool_use", "id": "mcptoolu_1", "name": "x", "server_name": "y", "input": {}},
        {"type": "mcp_tool_result", "tool_use_id": "mcptoolu_1", "is_error": False, "content": []},
    ],
    ids=lambda block: str(block["type"]),
)
async def test_blocks_about_what_a_providers_servers_did_are_dropped(block: dict[str, object]) -> None:
    answer = {"role": "assistant", "content": [block, text("Yes.")]}
    prompt = await prompt_for(messages=[*HI, answer, {"role": "user", "content": [block, text("and?")]}])
    assert prompt.messages[1:] == (
        ChatMessage(role="assistant", content="Yes."),
        ChatMessage(role="user", content="and?"),
    )


async def test_message_of_nothing_is_an_empty_text() -> None:
    for content in ("", [], [{"type": "redacted_thinking", "data": "x"}]):
        prompt = await prompt_for(messages=[{"role": "user", "content": content}])
        assert prompt.messages == (ChatMessage(role="user", content=""),)


UNSUPPORTED: list[tuple[list[Any], str, str]] = [
    ([{"role": "user", "content": [text("a"), IMAGE]}], "messages[0].content[1]", "image"),
    ([{"role": "user", "content": [DOCUMENT]}], "messages[0].content[0].source", "url"),
    ([*HI, {"role": "assistant", "content": [IMAGE]}, *HI], "messages[1].content[0]", "image"),
    ([{"role": "system", "content": [DOCUMENT]}, *HI], "messages[0].content[0]", "document"),
]


@pytest.mark.parametrize(("messages", "place", "kind"), UNSUPPORTED)
async def test_what_is_no_text_is_refused_by_its_place_and_name(messages: list[Any], place: str, kind: str) -> None:
    message = await refusal_of(messages=messages)
    assert f"`{place}.type` is `{kind}`, but this server reads text only" in message


async def test_of_pictures_and_files_in_a_result_the_model_reads_that_they_were_left_out() -> None:
    seen = result([text("a"), IMAGE, DOCUMENT])
    prompt = await prompt_for(messages=[*ASKED, {"role": "user", "content": [seen]}])
    omitted = "[image omitted: this model reads text only][file omitted: this model reads text only]"
    assert prompt.messages[-1].content == f"a{omitted}"


async def test_thousands_of_messages_are_taken() -> None:
    assert len((await prompt_for(messages=[{"role": "user", "content": ""}] * 5000)).messages) == 5000


WRONG: list[tuple[dict[str, Any], str]] = [
    ({"messages": [{"role": "user", "content": [{"type": "text"}]}]}, "`messages[0].content[0].text` is missing"),
    ({"system": [{"type": "text"}]}, "`system[0].text` is missing"),
    ({"messages": [{"role": "user"}]}, "`messages[0].content` is missing"),
    ({"messages": [{"role": "user", "content": [{"text": "x"}]}]}, "`messages[0].content[0].type` is missing"),
    ({"messages": [{"role": "user", "content": None}]}, "`messages[0].content` is null"),
    ({"messages": [*HI, {"role": "assistant", "content": [USE | {"name": None}]}, *HI]}, "messages[1].content[0].name"),
    ({"messages": [*ASKED, {"role": "user", "content": [result(5)]}]}, "content[0].content` is not valid"),
    ({"messages": [*ASKED, {"role": "user", "content": [result([{"text": "x"}])]}]}, "content[0].content[0].type"),
    (
        {"messages": [{"role": "user", "content": [{"type": "document"}]}]},
        "`messages[0].content[0].type` is `document`",
    ),
    ({"messages": [{"role": "user", "content": [{"type": "document", "source": {"type": "text"}}]}]}, "source.data"),
    ({"messages": [{"role": "user", "content": [{"type": "document", "source": {"type": ["text"]}}]}]}, "source"),
    (
        {"messages": [{"role": "user", "content": [{"type": "document", "source": {"type": "text", "data": {}}}]}]},
        "source.data",
    ),
    ({"messages": [{"role": "user", "content": [{"type": "search_result", "content": 7}]}]}, "content[0].content"),
    ({"messages": ASKED}, "`messages[1].content[0]` is a call in the last message"),
    ({"mcp_servers": [{"type": "url", "url": "http://169.254.169.254/", "name": "x"}]}, "`mcp_servers`"),
]


@pytest.mark.parametrize(("body", "words"), WRONG, ids=lambda value: str(value)[:60])
async def test_wrong_messages_are_refused_with_what_is_wrong(body: dict[str, Any], words: str) -> None:
    assert words in await refusal_of(**body)


async def test_tools_reach_the_engine_with_all_that_is_said_of_them() -> None:
    tools = [
        {"name": "weather", "description": "How it is.", "input_schema": SCHEMA, "strict": True},
        {"type": "custom", "name": "time", "input_schema": {"type": "object"}, "cache_control": {"type": "ephemeral"}},
        {"name": "mcp__a__b", "input_schema": {"type": "object"}, "input_examples": [{}], "defer_loading": True},
    ]
    assert (await prompt_for(tools=tools)).tools == (
        Tool(name="weather", description="How it is.", parameters=SCHEMA, strict=True),
        Tool(name="time", parameters={"type": "object"}),
        Tool(name="mcp__a__b", parameters={"type": "object"}),
    )


@pytest.mark.parametrize(
    "tool",
    [
        {"type": "web_search_20250305", "name": "web_search", "max_uses": 5},
        {"type": "bash_20250124", "name": "bash"},
        {"type": "text_editor_20250728", "name": "str_replace_based_edit_tool", "max_characters": 10},
        {"type": "mcp_toolset", "mcp_server_name": "a"},
    ],
    ids=lambda tool: str(tool["type"]),
)
async def test_tools_of_a_provider_are_dropped(tool: dict[str, object]) -> None:
    prompt = await prompt_for(tools=[tool, {"name": "bash", "input_schema": SCHEMA}])
    assert prompt.tools == (Tool(name="bash", parameters=SCHEMA),)
    assert (await prompt_for(tools=[tool], tool_choice={"type": "none"})).tools == ()


async def test_tools_of_which_none_can_be_called_are_refused_by_name() -> None:
    """A search that is asked for would silently be none."""
    words = "`tools[0].type` is web_search_20250305, which is not supported"
    assert words in await refusal_of(tools=[{"type": "web_search_20250305", "name": "web_search"}])


@pytest.mark.parametrize(
    ("tools", "words"),
    [
        ([{"input_schema": SCHEMA}], "`tools[0].name` is missing"),
        ([{"type": "bash_20250124", "name": "a"}, {"name": "a b"}], "`tools[1].name`"),
        ([{"name": str(index)} for index in range(257)], "257 tools"),
    ],
)
async def test_wrong_tools_are_refused_by_their_place(tools: list[Any], words: str) -> None:
    assert words in await refusal_of(tools=tools)


@pytest.mark.parametrize(
    ("thinking", "variables"),
    [
        (None, {}),
        ({"type": "disabled"}, {"enable_thinking": False}),
        ({"type": "enabled", "budget_tokens": 1024}, {"enable_thinking": True}),
        ({"type": "adaptive", "display": "summarized"}, {"enable_thinking": True}),
        ({"type": "between_tools"}, {"enable_thinking": True}),
    ],
)
async def test_thinking_is_switched_by_a_variable_of_the_template(thinking: object, variables: dict[str, bool]) -> None:
    assert (await prompt_for(thinking=thinking)).template_kwargs == variables


@pytest.mark.covers("structured-tools-agents/thinking-budget")
async def test_a_budget_of_thinking_reaches_the_engine() -> None:
    engine = FakeEngine()
    for thinking in ({"type": "enabled", "budget_tokens": 1024}, {"type": "adaptive"}):
        assert (await post(engine, thinking=thinking)).status_code == 200
    assert [request.params.thinking_token_budget for request in engine.requests] == [1024, None]
    assert "`thinking.budget_tokens`" in await refusal_of(thinking={"type": "enabled", "budget_tokens": -5})


@pytest.mark.parametrize(
    ("body", "variables"),
    [
        ({"output_config": {"effort": "high"}}, {"reasoning_effort": "high"}),
        ({"output_config": {"effort": None}}, {}),
        (
            {"output_config": {"effort": "max"}, "thinking": {"type": "adaptive"}},
            {"enable_thinking": True, "reasoning_effort": "max"},
        ),
    ],
)
async def test_effort_is_a_variable_of_the_template(body: dict[str, Any], variables: dict[str, object]) -> None:
    assert (await prompt_for(**body)).template_kwargs == variables


@pytest.mark.parametrize("effort", ["", "x" * 21])
async def test_an_effort_that_is_no_word_is_refused(effort: str) -> None:
    assert "`output_config.effort`" in await refusal_of(output_config={"effort": effort})


HEADER = "x-anthropic-billing-header: cc_version=2.1.0; cc_entrypoint=cli; cch=a1b2;"


@pytest.mark.parametrize("system", [[text(HEADER), text("Be nice.")], f"{HEADER}\nBe nice."])
async def test_the_billing_header_is_no_part_of_the_prompt(system: object) -> None:
    assert (await prompt_for(system=system)).messages[0] == ChatMessage(role="system", content="Be nice.")
    alone = await prompt_for(system=[text(HEADER)])
    assert [message.role for message in alone.messages] == ["user"]


async def test_a_last_answer_is_continued() -> None:
    prompt = await prompt_for(messages=[*HI, {"role": "assistant", "content": [text("It "), text("is")]}])
    assert (prompt.messages[-1].content, prompt.continue_final_message) == ("It is", True)
    assert prompt.add_generation_prompt is False
    assert (await prompt_for()).continue_final_message is False


@pytest.mark.parametrize("call_id", [None, ""])
async def test_calls_and_results_need_no_ids(call_id: str | None) -> None:
    asked = [*HI, {"role": "assistant", "content": [USE | {"id": call_id, "name": "no plain name"}]}]
    prompt = await prompt_for(messages=[*asked, {"role": "user", "content": [result("x", tool_use_id=call_id)]}])
    [call] = prompt.messages[1].tool_calls
    assert (prompt.messages[2].tool_call_id, prompt.messages[2].name) == (call.id, "no plain name")


async def test_an_answer_of_nothing_is_empty() -> None:
    contents: list[Any] = [None, "", []]
    for content in contents:
        prompt = await prompt_for(messages=[*HI, {"role": "assistant", "content": content}, *HI])
        assert prompt.messages[1] == ChatMessage(role="assistant", content="")
