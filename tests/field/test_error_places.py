"""Errors say where: the place in the body stands in the message, and in `param` where an API has one."""

from typing import Any

import pytest

from infer_proofs.server import FakeEngine
from infer_proofs.server.client import client_of

USER = {"role": "user", "content": "x"}
TOOL = {"type": "function", "function": {"name": "f"}}
CHAT, RESPONSES, MESSAGES = "/v1/chat/completions", "/v1/responses", "/v1/messages"


def tools_and(last: object) -> list[Any]:
    """Return 40 tools, of which the last is wrong."""
    return [*({"type": "function", "function": {"name": f"f{index}"}} for index in range(39)), last]


def called(call: object) -> list[Any]:
    return [USER, {"role": "assistant", "content": "", "tool_calls": [call]}]


def blocks(*content: object) -> list[Any]:
    return [USER, {"role": "user", "content": list(content)}]


CHATS: list[tuple[dict[str, Any], str]] = [
    ({"messages": [USER], "tools": tools_and({"function": {"name": "g"}})}, "tools[39].type"),
    ({"messages": [USER], "tools": tools_and({"type": "function"})}, "tools[39].function"),
    ({"messages": [USER], "tools": tools_and({"type": "function", "function": {}})}, "tools[39].function.name"),
    (
        {"messages": [USER], "tools": tools_and({"type": "function", "function": {"name": 1}})},
        "tools[39].function.name",
    ),
    ({"messages": [USER], "tools": tools_and({"type": "web_search"})}, "tools[39].type"),
    ({"messages": [USER], "tools": tools_and(5)}, "tools[39]"),
    ({"messages": called({"id": "c", "type": "function"})}, "messages[1].tool_calls[0].function"),
    ({"messages": called({"id": "c", "function": {}})}, "messages[1].tool_calls[0].function.name"),
    ({"messages": called({"id": 5, "function": {"name": "f"}})}, "messages[1].tool_calls[0].id"),
    ({"messages": called({"function": {"name": "f", "arguments": 1}})}, "messages[1].tool_calls[0].function.arguments"),
    ({"messages": [USER, {"content": "y"}]}, "messages[1].role"),
    ({"messages": [USER, {"role": "user"}]}, "messages[1].content"),
    ({"messages": [USER, {"role": "user", "content": 5}]}, "messages[1].content"),
    ({"messages": [USER, 5]}, "messages[1]"),
    ({"messages": blocks({"type": "text", "text": "x"}, {"text": "y"})}, "messages[1].content[1].type"),
    ({"messages": blocks({"type": "text"})}, "messages[1].content[0].text"),
    ({"messages": blocks({"type": "text", "text": 5})}, "messages[1].content[0].text"),
    ({"messages": blocks({"type": "image_url", "image_url": {}})}, "messages[1].content[0]"),
    ({"messages": [USER], "functions": [{"name": "f"}, {"parameters": {}}]}, "functions[1].name"),
    ({"messages": [USER], "response_format": {}}, "response_format.type"),
    ({"messages": [USER], "stream_options": {"bogus": 1}}, "stream_options.bogus"),
    ({"messages": [USER], "n": "2"}, "n"),
    ({}, "messages"),
]
INPUTS: list[tuple[dict[str, Any], str]] = [
    ({"input": [USER, {"type": "function_call", "call_id": "c", "arguments": "{}"}]}, "input[1].name"),
    ({"input": [USER, {"type": "function_call_output", "call_id": 5, "output": "x"}]}, "input[1].call_id"),
    ({"input": [USER, {"role": "user"}]}, "input[1].content"),
    ({"input": [USER, {"content": "x"}]}, "input[1].role"),
    ({"input": [USER, 5]}, "input[1]"),
    ({"input": [{"role": "user", "content": [{"type": "input_image"}]}]}, "input[0].content[0].type"),
    ({"input": [{"type": "reasoning", "summary": [{"text": 5}]}]}, "input[0].summary[0].text"),
    ({"input": "x", "tools": tools_and({"name": "g"})[39:]}, "tools[0].type"),
    ({"input": "x", "tools": [{"type": "function"}]}, "tools[0].name"),
    ({"input": "x", "tool_choice": {"type": "function"}}, "tool_choice.function"),
    ({"input": "x", "text": {"format": {}}}, "text.format.type"),
    ({"input": "x", "reasoning": {"effort": 5}}, "reasoning.effort"),
    ({}, "input"),
]  # fmt: skip
CONVERSATIONS: list[tuple[dict[str, Any], str]] = [
    ({"messages": [USER, {"role": "assistant"}]}, "messages[1].content"),
    ({"messages": [USER, {"content": "x"}]}, "messages[1].role"),
    ({"messages": blocks({"text": "x"})}, "messages[1].content[0].type"),
    ({"messages": blocks({"type": "text"})}, "messages[1].content[0].text"),
    ({"messages": blocks({"type": "image"})}, "messages[1].content[0].type"),
    ({"messages": blocks({"type": "tool_result", "content": [{"text": "x"}]})},
     "messages[1].content[0].content[0].type"),
    ({"messages": blocks({"type": "tool_result", "content": 5})}, "messages[1].content[0].content"),
    ({"messages": [USER, {"role": "assistant", "content": [{"type": "tool_use", "id": "t"}]}, USER]},
     "messages[1].content[0].name"),
    ({"messages": [USER], "tools": [{"name": "f"}, {"input_schema": {}}]}, "tools[1].name"),
    ({"messages": [USER], "tools": [{"name": "f", "input_schema": 5}]}, "tools[0].input_schema"),
    ({"messages": [USER], "system": [{"type": "text", "text": "x"}, {"text": "y"}]}, "system[1].type"),
    ({"messages": [USER], "output_config": {"effort": 5}}, "output_config.effort"),
    ({"messages": [USER], "thinking": {}}, "thinking.type"),
    ({"messages": [USER], "tool_choice": {}}, "tool_choice.type"),
    ({}, "messages"),
]  # fmt: skip
BODIES: list[tuple[str, dict[str, Any], str]] = [
    *((CHAT, body, place) for body, place in CHATS),
    *(("/tokenize", body, place) for body, place in CHATS if body.keys() == {"messages"}),
    *((RESPONSES, body, place) for body, place in INPUTS),
    *((MESSAGES, {"max_tokens": 4, **body}, place) for body, place in CONVERSATIONS),
    *((f"{MESSAGES}/count_tokens", body, place) for body, place in CONVERSATIONS),
    (MESSAGES, {"messages": [USER]}, "max_tokens"),
    ("/v1/completions", {"prompt": ["x", 5]}, "prompt"),
    ("/v1/completions", {"prompt": "x", "stream_options": {"include_usage": 1}}, "stream_options.include_usage"),
    ("/detokenize", {"tokens": [1, "2"]}, "tokens[1]"),
]


# From openai/codex#8829 and openai/codex#36048.
@pytest.mark.covers("http/error-places")
@pytest.mark.parametrize(("path", "body", "place"), BODIES, ids=lambda value: value if isinstance(value, str) else "")
async def test_an_error_names_the_place_of_its_cause(path: str, body: dict[str, Any], place: str) -> None:
    async with client_of(FakeEngine()) as client:
        reply = await client.post(path, json=body)
    assert reply.status_code in (400, 422), reply.text
    error = reply.json()["error"]
    if not path.startswith(MESSAGES):
        assert error["param"] == place
    assert f"`{place}" in error["message"]
