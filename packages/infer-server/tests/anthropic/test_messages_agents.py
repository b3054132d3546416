"""Requests of coding agents that speak Anthropic's API, as their public documentation describes them."""

import json
from pathlib import Path
from typing import Any

import httpx
import pytest
from msgspec import structs

from infer_proofs.server import FAKE_INFO, FakeEngine, sse_events
from infer_proofs.server.client import client_of
from infer_server import ServerSettings

REQUESTS = sorted((Path(__file__).parents[1] / "data" / "agents").glob("messages_*.json"))
ROOMY = structs.replace(FAKE_INFO, max_seq_len=200_000)


def read_request(path: Path) -> Any:
    return json.loads(path.read_text())


def request_by(agent: str) -> Any:
    return read_request(next(path for path in REQUESTS if path.stem == f"messages_{agent}"))


async def post(engine: FakeEngine, request: Any, *, path: str | None = None, **changed: Any) -> httpx.Response:
    """Send the `request` to a server of the model that it names."""
    body = request["body"] | changed
    async with client_of(engine, ServerSettings(served_model_name=body["model"], api_key=("key",))) as client:
        headers = {**request["headers"], "x-api-key": "key"}
        return await client.post(path or request["path"], json=body, headers=headers)


def test_there_are_two_agents() -> None:
    assert [path.stem for path in REQUESTS] == ["messages_claude_code", "messages_opencode"]


@pytest.mark.covers("structured-tools-agents/coding-agents")
@pytest.mark.parametrize("path", REQUESTS, ids=lambda path: path.stem)
async def test_request_of_an_agent_is_answered_whole_and_streamed(path: Path) -> None:
    request = read_request(path)
    whole = await post(FakeEngine(info=ROOMY), request, stream=False)
    assert (whole.status_code, whole.json()["stop_reason"]) == (200, "end_turn"), whole.text
    streamed = await post(FakeEngine(info=ROOMY), request)
    assert (streamed.status_code, sse_events(streamed.text)[-1][0]) == (200, "message_stop")


@pytest.mark.parametrize("path", REQUESTS, ids=lambda path: path.stem)
async def test_tokens_of_an_agents_request_are_counted_as_its_prompt(path: Path) -> None:
    request = read_request(path)
    counted = await post(FakeEngine(info=ROOMY), request, path="/v1/messages/count_tokens?beta=true")
    whole = await post(FakeEngine(info=ROOMY), request, stream=False)
    assert counted.json() == {"input_tokens": whole.json()["usage"]["input_tokens"]}


async def test_prompt_of_claude_code_has_all_its_turns_results_and_tools() -> None:
    engine, request = FakeEngine(info=ROOMY), request_by("claude_code")
    await post(engine, request)
    prompt: Any = engine.requests[0].prompt
    roles = " ".join(message.role for message in prompt.messages)
    assert roles == "system user assistant tool tool assistant tool assistant tool tool user"
    assert [tool.parameters for tool in prompt.tools] == [tool["input_schema"] for tool in request["body"]["tools"]]
    assert len(prompt.tools) >= 15
    assert prompt.messages[0].content == "".join(block["text"] for block in request["body"]["system"])
    assert prompt.messages[2].reasoning == "I should look for the test first."
    assert prompt.messages[4].content == "tests/test_app.py\ntests/conftest.py"
    assert prompt.messages[6].content.startswith("Error: Exit code 1")
    assert prompt.template_kwargs == {"enable_thinking": True}


async def test_prompt_of_opencode_has_no_tools_and_blocks_of_a_providers_servers() -> None:
    engine, request = FakeEngine(info=ROOMY), request_by("opencode")
    await post(engine, request)
    prompt: Any = engine.requests[0].prompt
    roles = " ".join(message.role for message in prompt.messages)
    assert roles == "system user assistant tool assistant tool tool"
    assert prompt.messages[2].content == "It renames `load`."
    own = [tool["name"] for tool in request["body"]["tools"] if "type" not in tool]
    assert [tool.name for tool in prompt.tools] == own
    assert len(own) >= 15
    assert engine.requests[0].params.stop == ("</done>",)
