"""Histories as clients send them back: whatever earlier answers look like, the conversation goes on.

From public reports of servers that refuse a conversation for what they, or others, have said in it before.
"""

import json
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import httpx
import pytest

from infer_proofs.server import FakeEngine
from infer_proofs.server.client import client_of
from infer_server import ServerSettings

ServeScript = Callable[..., AbstractContextManager[httpx.Client]]

USER = {"role": "user", "content": "Write"}
SCHEMA = {"type": "object", "properties": {"text": {"type": "string"}}, "required": ["text"]}
MARKS = ("<tool_call>", "</tool_call>")
# Describes tools, writes calls as Hermes does, and says the names of results.
HERMES = (
    "{% for tool in tools or [] %}{{ tool | tojson }}{% endfor %}{% for m in messages %}<|im_start|>{{ m.role }}\n"
    "{{ m.name or '' }}{{ m.content }}{% for call in m.tool_calls or [] %}<tool_call>\n"
    '{"name": "{{ call.function.name }}", "arguments": {{ call.function.arguments | tojson }}}\n</tool_call>'
    "{% endfor %}<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
# The manner of templates that write the members one by one.
PER_ARGUMENT = HERMES.replace(
    "{{ call.function.arguments | tojson }}", "{% for name, value in call.function.arguments.items() %}{% endfor %}"
)
CUT_OFF = ["<tool_call>", '\n{"name": "write", "arguments": ', '{"text": "once upon', " a time"]


def post(client: httpx.Client, path: str, **body: Any) -> Any:
    reply = client.post(path, json=body)
    assert reply.status_code == 200, reply.text
    return reply.json()


# From vllm-project/vllm#43995 and #48922, justrach/codegraff#752, windmill-labs/windmill#9902 and, for responses,
# local-inference-lab/vllm#684.
@pytest.mark.covers("structured-tools-agents/history-not-judged")
@pytest.mark.parametrize("template", [HERMES, PER_ARGUMENT], ids=["as JSON", "one by one"])
def test_a_call_that_max_tokens_cut_off_can_be_sent_back(serve_script: ServeScript, template: str) -> None:
    with serve_script(CUT_OFF, chat_template=template, added_tokens=MARKS) as client:
        function = {"name": "write", "parameters": SCHEMA}
        asked: dict[str, Any] = {
            "tools": [{"type": "function", "function": function}],
            "temperature": 0,
            "max_tokens": 4,
        }
        [cut] = post(client, "/v1/chat/completions", messages=[USER], **asked)["choices"]
        [call] = cut["message"]["tool_calls"]
        with pytest.raises(json.JSONDecodeError):
            json.loads(call["function"]["arguments"])
        result = {"role": "tool", "tool_call_id": call["id"], "content": "invalid arguments"}
        post(client, "/v1/chat/completions", messages=[USER, cut["message"], result], **asked)

        asked = {"tools": [{"type": "function", **function}], "temperature": 0, "max_output_tokens": 4}
        output = post(client, "/v1/responses", input=[USER], **asked)["output"]
        [call] = [item for item in output if item["type"] == "function_call"]
        result = {"type": "function_call_output", "call_id": call["call_id"], "output": "invalid arguments"}
        post(client, "/v1/responses", input=[USER, *output, result], **asked)


async def prompt_of(path: str, **body: Any) -> Any:
    """Return the prompt that reaches the engine."""
    engine = FakeEngine()
    async with client_of(engine, ServerSettings()) as client:
        reply = await client.post(path, json=body)
    assert reply.status_code == 200, reply.text
    return engine.requests[0].prompt


GIVEN: list[tuple[Any, Any]] = [
    ("", {}),
    ("null", {}),
    (None, {}),
    ("[1, 2]", "[1, 2]"),
    ('{"text": "a" "b"}', '{"text": "a" "b"}'),
    ({"text": "a"}, {"text": "a"}),
    ('{"text": "a"}', {"text": "a"}),
]


# From vllm-project/vllm#19419, OpenHands/software-agent-sdk#2887, NVIDIA-NeMo/Gym#3474.
@pytest.mark.parametrize(("given", "arguments"), GIVEN, ids=str)
async def test_arguments_of_other_models_are_taken_by_every_api(given: object, arguments: object) -> None:
    call = {"id": "c", "type": "function", "function": {"name": "write", "arguments": given}}
    used = {"type": "tool_use", "id": "c", "name": "write", "input": given}
    item = {"type": "function_call", "call_id": "c", "name": "write", "arguments": given}
    bodies: dict[str, dict[str, Any]] = {
        "/v1/chat/completions": {"messages": [USER, {"role": "assistant", "tool_calls": [call]}, USER]},
        "/v1/responses": {"input": [USER, item, USER]},
        "/v1/messages": {"max_tokens": 2, "messages": [USER, {"role": "assistant", "content": [used]}, USER]},
    }
    for path, body in bodies.items():
        [made] = (await prompt_of(path, **body)).messages[1].tool_calls
        assert (made.id, made.arguments) == ("c", arguments), path


# From vllm-project/vllm#21089, vercel/ai#18452, langchain4j/langchain4j#1958, tashfeenahmed/freellmapi#165 and
# lmstudio-ai/lmstudio-bug-tracker#261.
EMPTY_ANSWERS: list[tuple[dict[str, Any], str]] = [
    ({}, ""),
    ({"content": None}, ""),
    ({"content": ""}, ""),
    ({"content": []}, ""),
    ({"content": [{"type": "text", "text": ""}]}, ""),
    ({"content": None, "tool_calls": []}, ""),
    ({"content": None, "tool_calls": None, "function_call": None}, ""),
    ({"content": None, "reasoning_content": "hm"}, ""),
    ({"reasoning": "hm"}, ""),
    ({"content": None, "refusal": "no"}, "no"),
    ({"content": [{"type": "refusal", "refusal": "no"}]}, "no"),
]


@pytest.mark.parametrize(("answer", "text"), EMPTY_ANSWERS, ids=str)
async def test_an_answer_without_text_does_not_end_a_chat(answer: dict[str, Any], text: str) -> None:
    prompt = await prompt_of("/v1/chat/completions", messages=[USER, {"role": "assistant", **answer}, USER])
    assert [message.role for message in prompt.messages] == ["user", "assistant", "user"]
    assert (prompt.messages[1].content or "") == text


# From can1357/oh-my-pi#2055, openclaw/openclaw#47136, HKUDS/nanobot#4059.
async def test_ids_that_models_use_twice_pair_calls_and_results_in_order() -> None:
    def turn(name: str, result: str) -> list[dict[str, Any]]:
        call = {"id": "functions:0", "type": "function", "function": {"name": name, "arguments": "{}"}}
        return [
            {"role": "assistant", "tool_calls": [call]},
            {"role": "tool", "tool_call_id": "functions:0", "content": result},
        ]

    prompt = await prompt_of("/v1/chat/completions", messages=[USER, *turn("read", "a"), *turn("write", "b"), USER])
    results = [(message.name, message.content) for message in prompt.messages if message.role == "tool"]
    assert results == [("read", "a"), ("write", "b")]


# From vercel/ai#2178, gpustack/gpustack#6210, cubist38/mlx-openai-server#268.
async def test_results_without_ids_or_calls_are_seen() -> None:
    bodies: dict[str, dict[str, Any]] = {
        "/v1/chat/completions": {"messages": [USER, {"role": "tool", "content": "seen"}, USER]},
        "/v1/responses": {"input": [USER, {"type": "function_call_output", "output": "seen"}, USER]},
        "/v1/messages": {
            "max_tokens": 2,
            "messages": [{"role": "user", "content": [{"type": "tool_result", "content": "seen"}]}, USER],
        },
    }
    for path, body in bodies.items():
        prompt = await prompt_of(path, **body)
        assert ("tool", "seen") in [(message.role, message.content) for message in prompt.messages], path


# From langchain-ai/langchain#29632, agno-agi/agno#210.
async def test_calls_and_results_of_the_old_api_are_those_of_tools() -> None:
    call = {"role": "assistant", "content": None, "function_call": {"name": "find", "arguments": '{"q": 1}'}}
    prompt = await prompt_of(
        "/v1/chat/completions", messages=[USER, call, {"role": "function", "name": "find", "content": "x"}]
    )
    [made] = prompt.messages[1].tool_calls
    result = prompt.messages[2]
    assert (made.name, made.arguments, result.role) == ("find", {"q": 1}, "tool")
    assert (result.tool_call_id, result.name) == (made.id, "find")


# From cubist38/mlx-openai-server#268, CommandCodeAI/command-code#893.
async def test_what_agents_did_with_tools_of_other_models_is_seen() -> None:
    items: list[dict[str, Any]] = [
        {"type": "custom_tool_call", "call_id": "1", "name": "apply_patch", "input": "*** Begin"},
        {"type": "custom_tool_call_output", "call_id": "1", "output": "Done"},
        {"type": "local_shell_call", "call_id": "2", "action": {"type": "exec", "command": ["ls"]}},
        {"type": "local_shell_call_output", "call_id": "2", "output": "a.py"},
        {"type": "tool_search_call", "call_id": "3", "arguments": {"query": "docs"}},
        {"type": "tool_search_output", "call_id": "3", "tools": [{"name": "read_docs"}]},
        {"type": "mcp_call", "id": "4", "name": "look", "arguments": "{}", "output": "found"},
    ]
    messages = (await prompt_of("/v1/responses", input=[USER, *items])).messages[1:]
    calls = [(call.name, call.arguments) for message in messages for call in message.tool_calls]
    assert calls == [
        ("apply_patch", {"input": "*** Begin"}),
        ("local_shell", {"type": "exec", "command": ["ls"]}),
        ("tool_search", {"query": "docs"}),
        ("look", {}),
    ]
    results = [message.content for message in messages if message.role == "tool"]
    assert results == ["Done", "a.py", '[{"name":"read_docs"}]', "found"]
