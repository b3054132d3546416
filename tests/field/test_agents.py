"""Coding agents, and the proxies between them and a server: what they send beside the conversation."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import httpx
import pytest

from infer_proofs.server import FakeEngine
from infer_proofs.server.client import client_of

ServeScript = Callable[..., AbstractContextManager[httpx.Client]]

USER: dict[str, Any] = {"role": "user", "content": "x"}
MARK = {"cache_control": {"type": "ephemeral", "ttl": "1h", "scope": "global"}}
EFFORT = (
    "{{ reasoning_effort or '' }}{% for tool in tools or [] %}{{ tool.function.name }}{% endfor %}"
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
SCHEMA = {"type": "object", "properties": {}, "additionalProperties": False}


def post(client: httpx.Client, path: str, **body: Any) -> Any:
    reply = client.post(path, json=body)
    assert reply.status_code == 200, reply.text
    return reply.json()


@pytest.fixture
def client(serve_script: ServeScript) -> Any:
    return serve_script(["fine"], chat_template=EFFORT, flags=("--tool-call-format", "hermes"))


def test_what_agents_send_changes_the_prompt_only_where_it_should(client: Any) -> None:
    with client as opened:
        _billing_header_is_no_part_of_the_prompt(opened)
        _effort_reaches_the_template(opened)
        _last_answer_is_continued(opened)
        _allowed_tools_restrict_calls(opened)


# From anthropics/claude-code#68900, vllm-project/vllm#36829, sgl-project/sglang#21064 and waybarrios/vllm-mlx#277.
def _billing_header_is_no_part_of_the_prompt(client: httpx.Client) -> None:
    rules = "Follow the rules of this long list, one after another. " * 30

    def ask(hash_of_request: str) -> tuple[int, int]:
        header = f"x-anthropic-billing-header: cc_version=2.1.0; cc_entrypoint=cli; cch={hash_of_request};"
        system = [{"type": "text", "text": header}, {"type": "text", "text": rules, **MARK}]
        body = {"system": system, "messages": [USER]}
        usage = post(client, "/v1/messages", max_tokens=4, **body)["usage"]
        [counted] = post(client, "/v1/messages/count_tokens", **body).values()
        return usage["cache_read_input_tokens"], counted

    (_, first), (cached, second) = ask("aa111"), ask("bb222")
    assert cached > 1000
    assert first == second


# From vllm-project/vllm#44576.
def _effort_reaches_the_template(client: httpx.Client) -> None:
    def tokens(**body: Any) -> int:
        [counted] = post(client, "/v1/messages/count_tokens", messages=[USER], **body).values()
        usage = post(client, "/v1/messages", messages=[USER], max_tokens=1, **body)["usage"]
        assert counted == usage["input_tokens"] + usage["cache_read_input_tokens"]
        assert isinstance(counted, int)
        return counted

    plain = tokens()
    assert tokens(output_config={"effort": "high"}) == plain + len("high")
    assert tokens(output_config={"effort": "max"}, thinking={"type": "adaptive", "display": "omitted"}) == plain + 3
    assert tokens(output_config={"effort": None}, thinking={"type": "disabled"}) == plain


# From BerriAI/litellm#28580, sgl-project/sglang#3971, ggml-org/llama.cpp#11755 and InternLM/lmdeploy#2798.
def _last_answer_is_continued(client: httpx.Client) -> None:
    begun = {"role": "assistant", "content": "It is"}
    [asked] = post(client, "/v1/messages/count_tokens", messages=[USER]).values()
    [continued] = post(client, "/v1/messages/count_tokens", messages=[USER, begun]).values()
    assert continued == asked + len("It is")
    answer = post(client, "/v1/messages", max_tokens=4, temperature=0, messages=[USER, begun])
    assert (answer["content"], answer["stop_reason"]) == ([{"type": "text", "text": "fine"}], "end_turn")
    flags = {"continue_final_message": True, "add_generation_prompt": False}
    assert post(client, "/tokenize", messages=[USER, begun], **flags)["count"] == continued
    chat = post(client, "/v1/chat/completions", messages=[USER, begun], max_tokens=4, temperature=0, **flags)
    assert chat["usage"]["prompt_tokens"] == continued
    assert chat["choices"][0]["message"]["content"] == "fine"
    closed = post(client, "/v1/chat/completions", messages=[USER, begun], max_tokens=4)
    assert closed["usage"]["prompt_tokens"] > continued


# From microsoft/agent-framework#5309 and agentscope-ai/agentscope#1516.
def _allowed_tools_restrict_calls(client: httpx.Client) -> None:
    functions = [{"name": name, "parameters": SCHEMA} for name in ("read", "write")]
    tools = [{"type": "function", "function": function} for function in functions]
    named = {"type": "function", "function": {"name": "write"}}
    prompts = set()
    for mode in ("auto", "required"):
        choice: Any = {"type": "allowed_tools", "allowed_tools": {"mode": mode, "tools": [named]}}
        body = {"messages": [USER], "tools": tools, "max_tokens": 80, "temperature": 0}
        answer = post(client, "/v1/chat/completions", tool_choice=choice, parallel_tool_calls=False, **body)
        prompts |= {
            answer["usage"]["prompt_tokens"],
            post(client, "/v1/chat/completions", **body)["usage"]["prompt_tokens"],
        }
        calls = answer["choices"][0]["message"].get("tool_calls", [])
        assert [call["function"]["name"] for call in calls] == (["write"] if mode == "required" else [])
    assert len(prompts) == 1
    flat = [{"type": "function", **function} for function in functions]
    choice = {"type": "allowed_tools", "mode": "required", "tools": [{"type": "function", "name": "read"}]}
    [item] = post(client, "/v1/responses", input="x", tools=flat, tool_choice=choice, parallel_tool_calls=False)[
        "output"
    ]
    assert (item["type"], item["name"]) == ("function_call", "read")


def test_a_call_that_the_model_begins_of_a_tool_that_is_not_allowed_is_none(serve_script: ServeScript) -> None:
    written = ["<tool_call>", '\n{"name": "read", "arguments": ', "{}}\n", "</tool_call>"]
    functions = [{"name": name, "parameters": SCHEMA} for name in ("read", "write")]
    tools = [{"type": "function", "function": function} for function in functions]
    with serve_script(
        written, added_tokens=("<tool_call>", "</tool_call>"), flags=("--tool-call-format", "hermes")
    ) as client:
        for allowed in ("read", "write"):
            choice = {"type": "allowed_tools", "mode": "auto", "tools": [{"type": "function", "name": allowed}]}
            body = {"tools": tools, "tool_choice": choice, "temperature": 0, "max_tokens": 60}
            [answer] = post(client, "/v1/chat/completions", messages=[USER], **body)["choices"]
            names = [call["function"]["name"] for call in answer["message"].get("tool_calls", [])]
            assert ("read" in names) == (allowed == "read")


async def prompt_of(path: str, **body: Any) -> Any:
    """Return the prompt that reaches the engine."""
    engine = FakeEngine()
    async with client_of(engine) as client:
        reply = await client.post(path, json=body)
    assert reply.status_code == 200, reply.text
    return engine.requests[0].prompt


# From caozhiyuan/copilot-api#145, BerriAI/litellm#15758 and #30835, anthropics/claude-code#4378.
async def test_fields_of_proxies_are_passed_over_by_messages_and_by_its_count() -> None:
    def body(foreign: dict[str, Any]) -> dict[str, Any]:
        used = {"type": "tool_use", "id": "t", "name": "f", "input": {}, **foreign}
        result = {"type": "tool_result", "tool_use_id": "t", "content": [{"type": "text", "text": "r", **foreign}]}
        return {
            "system": [{"type": "text", "text": "s", **foreign}],
            "messages": [
                {"role": "user", "content": [{"type": "text", "text": "x", **foreign}], **foreign},
                {"role": "assistant", "content": [{"type": "thinking", "thinking": "hm", **foreign}, used], **foreign},
                {"role": "user", "content": [result | foreign]},
            ],
            "tools": [{"name": "f", "input_schema": SCHEMA, **foreign}],
            "tool_choice": {"type": "auto", **foreign},
            "thinking": {"type": "adaptive", **foreign},
        }

    foreign = {**MARK, "provider_specific_fields": None, "display": "omitted", "caller": {"type": "direct"}}
    top = {
        "context_management": {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]},
        "metadata": {"user_id": "u"},
        "betas": ["x"],
        "mcp_servers": [],
        "container": None,
        "service_tier": "auto",
        "speed": "fast",
        **MARK,
    }
    plain = await prompt_of("/v1/messages", max_tokens=4, **body({}))
    assert await prompt_of("/v1/messages", max_tokens=4, **body(foreign), **top) == plain
    async with client_of(FakeEngine()) as client:
        counts = [
            await client.post("/v1/messages/count_tokens", json={"max_tokens": 4, **each})
            for each in (body({}), body(foreign) | top)
        ]
    assert counts[0].json() == counts[1].json()


# From anthropics/claude-code#30995 and caozhiyuan/copilot-api#162.
async def test_what_a_search_for_tools_found_is_seen() -> None:
    found = [{"type": "tool_reference", "tool_name": name, **MARK} for name in ("mcp__a", "mcp__b")]
    used = {"type": "tool_use", "id": "t", "name": "ToolSearch", "input": {"query": "a"}}
    result = {"type": "tool_result", "tool_use_id": "t", "content": found}
    tools = [{"name": name, "input_schema": SCHEMA, "defer_loading": True} for name in ("mcp__a", "mcp__b")]
    messages = [USER, {"role": "assistant", "content": [used]}, {"role": "user", "content": [result]}]
    prompt = await prompt_of("/v1/messages", max_tokens=4, messages=messages, tools=tools)
    assert prompt.messages[2].content == "mcp__a\nmcp__b"
    assert [tool.name for tool in prompt.tools] == ["mcp__a", "mcp__b"]


# From sgl-project/sglang#31179 and tashfeenahmed/freellmapi#793: a text that is attached was refused, or left out.
async def test_documents_of_text_and_what_a_search_found_are_seen() -> None:
    source = {"type": "text", "media_type": "text/plain", "data": "All rain."}
    document = {"type": "document", "source": source, "title": "Weather", "context": "of today", **MARK}
    parts = {"type": "document", "source": {"type": "content", "content": [{"type": "text", "text": "No wind."}]}}
    found = {
        "type": "search_result",
        "source": "http://x",
        "title": "Sea",
        "content": [{"type": "text", "text": "Low."}],
    }
    used = {"type": "tool_use", "id": "t", "name": "look", "input": {}}
    result = {"type": "tool_result", "tool_use_id": "t", "content": [found, parts]}
    asked = {"role": "user", "content": [document, {"type": "text", "text": "Cold?"}]}
    messages = [asked, {"role": "assistant", "content": [used]}, {"role": "user", "content": [result]}]
    prompt = await prompt_of("/v1/messages", max_tokens=4, messages=messages)
    assert prompt.messages[0].content == "Weather\n\nof today\n\nAll rain.\n\nCold?"
    assert prompt.messages[2].content == "Sea\n\nhttp://x\n\nLow.\n\nNo wind.\n\n"


async def test_what_was_compacted_is_seen() -> None:
    answer = {
        "role": "assistant",
        "content": [{"type": "compaction", "content": "So far: a."}, {"type": "text", "text": "b"}],
    }
    prompt = await prompt_of("/v1/messages", max_tokens=4, messages=[USER, answer, USER])
    assert prompt.messages[1].content == "So far: a.b"


# What LangChain, LiteLLM, Open WebUI, Cline, Zed and others put into the messages of chats: vllm-project/vllm#10463,
# #12864, charmbracelet/crush#1590, langchain4j/langchain4j#1958.
CHATS: dict[str, list[Any]] = {
    "LangChain": [
        {"role": "user", "content": "x", "name": "bob"},
        {"role": "assistant", "content": "", "name": None, "function_call": None, "invalid_tool_calls": []},
        {"role": "tool", "content": "r", "tool_call_id": "c", "name": "f", "status": "success", "artifact": None},
    ],
    "LiteLLM": [
        USER,
        {"role": "assistant", "content": "y", "reasoning_content": "hm", "thinking_blocks": [{"type": "thinking"}],
         "provider_specific_fields": {"citations": None}, "images": [], "annotations": []},
    ],
    "Open WebUI": [{**USER, "id": "7c", "timestamp": 17, "models": ["m"], "files": []}],
    "OpenRouter": [USER, {"role": "assistant", "content": "y", "reasoning_details": [{"type": "reasoning.encrypted"}]}],
    "Gemini": [
        USER,
        {"role": "assistant", "tool_calls": [{"id": "", "type": "function", "index": 0, "function": {
            "name": "f", "arguments": "{}"}, "extra_content": {"google": {"thought_signature": "x"}}}]},
        {"role": "tool", "tool_call_id": "", "name": "f", "content": "r"},
    ],
    "Vercel AI SDK": [
        {"role": "system", "content": "s", "providerOptions": {"anthropic": MARK}},
        {"role": "user", "content": [{"type": "text", "text": "x", "providerMetadata": {}}], "experimental": 1},
    ],
}  # fmt: skip


@pytest.mark.parametrize("client", CHATS)
async def test_messages_of_clients_are_taken(client: str) -> None:
    prompt = await prompt_of("/v1/chat/completions", messages=CHATS[client], tools=[
        {"type": "function", "function": {"name": "f", "parameters": SCHEMA, **MARK}, **MARK}])  # fmt: skip
    assert len(prompt.messages) == len(CHATS[client])


# From mozilla-ai/any-llm#1310, BerriAI/litellm#34029, lbjlaq/Antigravity-Manager#506 and mudler/LocalAI#9722: agents
# send the tools of one API to another, or in two shapes at once.
async def test_tools_in_the_shape_of_another_api_are_functions() -> None:
    function = {"name": "f", "description": "d", "parameters": SCHEMA, "strict": True}
    nested, flat = {"type": "function", "function": function}, {"type": "function", **function}
    of_messages = {"name": "f", "description": "d", "input_schema": SCHEMA, "strict": True, **MARK}
    [expected] = (await prompt_of("/v1/chat/completions", messages=[USER], tools=[nested])).tools
    unnamed = {name: value for name, value in function.items() if name != "name"}
    mixed = {"type": "function", "name": "f", "function": unnamed}
    for tool in (flat, of_messages, mixed):
        assert (await prompt_of("/v1/chat/completions", messages=[USER], tools=[tool])).tools == (expected,)
    [expected] = (await prompt_of("/v1/responses", input="x", tools=[flat])).tools
    assert (await prompt_of("/v1/responses", input="x", tools=[nested])).tools == (expected,)
