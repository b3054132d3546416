"""Requests of coding agents to `/v1/responses`, as their public documentation describes them, and their events."""

import json
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs

from infer_engine.protocol import AnswerDelta, ChatPrompt, ContentDelta, ReasoningDelta, ToolCallDelta
from infer_proofs.server import FAKE_INFO, FakeEngine, Script, sse_events
from infer_proofs.server.client import client_of
from infer_server import ServerSettings

REQUESTS = sorted((Path(__file__).parents[1] / "data" / "agents").glob("responses_*.json"))
ANSWER: tuple[AnswerDelta, ...] = (ReasoningDelta("Hm."), ContentDelta("So."), ToolCallDelta(0, "read", "{}"))


async def events_for(request: dict[str, Any]) -> tuple[list[Any], ChatPrompt]:
    """Return the data of the events, and the prompt that reaches the engine."""
    body = request["body"]
    info = structs.replace(FAKE_INFO, max_seq_len=100_000)
    engine = FakeEngine(Script(steps=tuple(((1,), (part,)) for part in ANSWER)), info=info)
    async with client_of(engine, ServerSettings(served_model_name=body["model"])) as client:
        reply = await client.post(request["path"], json=body, headers=request["headers"])
    assert reply.status_code == 200, reply.text
    prompt = engine.requests[0].prompt
    assert isinstance(prompt, ChatPrompt)
    return [data for _, data in sse_events(reply.text)], prompt


def read_request(path: Path) -> dict[str, Any]:
    request: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return request


def test_there_are_requests_of_two_agents() -> None:
    assert [path.stem for path in REQUESTS] == ["responses_codex", "responses_opencode"]


@pytest.mark.covers("structured-tools-agents/coding-agents")
@pytest.mark.parametrize("path", REQUESTS, ids=lambda path: path.stem)
async def test_a_request_of_an_agent_is_answered(path: Path) -> None:
    events, _ = await events_for(read_request(path))
    assert events[-1]["type"] == "response.completed"
    assert [item["type"] for item in events[-1]["response"]["output"]] == ["reasoning", "message", "function_call"]


@pytest.mark.parametrize("path", REQUESTS, ids=lambda path: path.stem)
async def test_functions_of_an_agent_reach_the_engine_and_its_other_tools_do_not(path: Path) -> None:
    request = read_request(path)
    _, prompt = await events_for(request)
    known = [tool for tool in request["body"]["tools"] if tool["type"] in ("function", "custom", "namespace")]
    names = [f"{tool['name']}__{tool['tools'][0]['name']}" if "tools" in tool else tool["name"] for tool in known]
    assert [tool.name for tool in prompt.tools] == names
    assert len(prompt.tools) < len(request["body"]["tools"])


async def test_a_conversation_of_codex_has_one_system_message_and_whole_answers() -> None:
    request = read_request(REQUESTS[0])
    _, prompt = await events_for(request)
    system, _, _, *rest = prompt.messages
    assert system.content is not None
    assert system.content.startswith(request["body"]["instructions"])
    assert system.content.endswith("</permissions instructions>")
    assert [(message.role, message.reasoning, len(message.tool_calls)) for message in rest] == [
        ("assistant", "**Looking at the tests**", 2),
        ("tool", None, 0),
        ("tool", None, 0),
        ("assistant", "The sign is wrong.", 1),
        ("tool", None, 0),
        ("assistant", None, 1),
        ("tool", None, 0),
        ("assistant", None, 1),
        ("tool", None, 0),
    ]
    patch, search, _ = [call for message in rest[3:] for call in message.tool_calls]
    assert patch.name == "apply_patch"
    assert "Update File: sum.py" in str(patch.arguments)
    assert (search.name, search.arguments) == ("tool_search", {"query": "docs"})
    assert rest[4].content == "Success. Updated the following files:\nM sum.py\n"
    assert prompt.template_kwargs == {"enable_thinking": True, "reasoning_effort": "medium"}


async def test_a_conversation_of_opencode_has_its_summaries_as_reasoning() -> None:
    _, prompt = await events_for(read_request(REQUESTS[1]))
    assert [message.role for message in prompt.messages] == ["system", "user", "assistant", "tool", "tool"]
    assert prompt.messages[2].reasoning == "**Searching**\n\nGrep finds it."
    assert [call.name for call in prompt.messages[2].tool_calls] == ["grep", "todoread"]
