"""Tools that are offered change nothing but what calls of them hold: `tool_choice` is `auto` everywhere here.

Models answer with scripts; each answer is asked for with and without tools.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from infer_engine import LLM, SamplingParams, StructuredOutputs, Tool
from infer_engine.frontend.completion import Completion
from infer_engine.protocol.chat import ToolChoice
from infer_proofs.models import save_scripted

CHATML = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
DESCRIBED = "{% for t in tools or [] %}{{ t | tojson }}{% endfor %}" + CHATML
TEMPLATES = {
    "hermes": DESCRIBED + "{# <tool_call> #}",
    "llama3_json": DESCRIBED + '{# {"name": "f", "parameters": {}} #}',
    "mistral": DESCRIBED + "{# [TOOL_CALLS] #}",
    "mistral_args": DESCRIBED + "{# [TOOL_CALLS]f[ARGS] #}",
    "json": CHATML,
}
THINKS = DESCRIBED.replace("assistant\n{% endif", "assistant\n<think>\n{% endif") + "{# <tool_call> #}"
MARKS = ("<think>", "</think>", "<tool_call>", "</tool_call>", "[TOOL_CALLS]", "[ARGS]")
PLACE = {"type": "object", "properties": {"at": {"type": "string"}}}
COUNTS = {
    "type": "object",
    "properties": {"may": {"type": "integer"}, "must": {"type": "integer"}},
    "required": ["must"],
}
TOOLS = [Tool(name="look", parameters=PLACE), Tool(name="count", parameters=COUNTS)]


def load(folder: Path, script: list[str], template: str, **how: Any) -> LLM:
    save_scripted(folder, script, chat_template=template, added_tokens=MARKS, **how)
    return LLM(str(folder), max_seq_len=2048, kv_cache_memory=2**24, use_cpu_graphs=False)


def answer(llm: LLM, *, tools: list[Tool] | None = None, **params: Any) -> Completion:
    sampling = SamplingParams(**{"temperature": 0, "max_tokens": 60, **params})
    [completion] = llm.chat([{"role": "user", "content": "x"}], sampling, tools=tools or [], use_tqdm=False)
    return completion


def comparable(completion: Completion) -> tuple[object, ...]:
    return completion.token_ids, completion.text, completion.reasoning, completion.finish_reason, completion.tool_calls


# ollama/ollama#17602, ggml-org/llama.cpp#18183, lmstudio-ai/lmstudio-bug-tracker#1592: text that looks like a call
WITHOUT_CALLS = {
    "prose": ["It is", " blue."],
    "a mark in prose": ["Qwen writes `", "<tool_call>", "` around", " calls, Mistral `", "[TOOL_CALLS]", "`."],
    "a mark at the end": ["It begins with ", "<tool_call>"],
    "JSON with a name": ['{"name": "', "John Smith", '", "age": ', "41}"],
    "JSON with a tool's name": ['{"name": "', "look", '", "age": ', "41}"],
    "JSON in lines": ['{\n  "name": "', "John", '",\n  "arguments": ', '"none"\n}'],
    "a call of another tool": ["<tool_call>", '\n{"name": "find", "argum', 'ents": {"a": 1}}\n', "</tool_call>"],
    "another tool in a list": ["[TOOL_CALLS]", ' [{"name": "look_up", "arguments": {', '"at": 3}}]'],
    "another tool by mark": ["[TOOL_CALLS]", "look_up", "[ARGS]", '{"at": 3}'],
    "a schema": ['{"type": "object", "name": "', "look", '", "properties": {', '"at": {}}}'],
    "white space": ["\n\n  It is", " so.\n"],
}


@pytest.mark.covers("structured-tools-agents/auto-is-free")
@pytest.mark.parametrize("template", TEMPLATES.values(), ids=TEMPLATES)
def test_an_answer_without_a_call_is_the_same_with_tools_and_without(template: str, tmp_path: Path) -> None:
    for number, (what, script) in enumerate(WITHOUT_CALLS.items()):
        llm = load(tmp_path / str(number), script, template)
        plain, offered = answer(llm), answer(llm, tools=TOOLS)
        assert comparable(offered) == comparable(plain), what
        assert offered.text == "".join(script), what


# vllm-project/vllm#18791 and others: thinking that never ends where tools are offered
@pytest.mark.parametrize(
    "script",
    [["I think", " that is", " all"], ["I call ", "<tool_call>", '{"name": "look", "arguments": {', '"x": 1}}']],
)
def test_an_answer_may_end_while_thinking(script: list[str], tmp_path: Path) -> None:
    llm = load(tmp_path / "model", script, THINKS)
    plain, offered = answer(llm), answer(llm, tools=TOOLS)
    assert comparable(offered) == comparable(plain)
    assert (offered.text, offered.reasoning) == ("", "".join(script))


def calls_of(completion: Completion) -> list[tuple[str, Any]]:
    return [(call.name, json.loads(call.arguments)) for call in completion.tool_calls]


CALLS = {
    "hermes": ["<tool_call>", '\n{"name": "count", "arguments": {', '"must": 1', ', "may": ', "2}", "}\n</tool_call>"],
    "llama3_json": ['{"name": "count", "parameters"', ': {"must": ', '1, "may"', ": 2}", "}"],
    "mistral": ["[TOOL_CALLS]", ' [{"name": "co', 'unt", "arguments": {"must": 1,', ' "may": 2', '}, "id": 7', "}]"],
    "mistral_args": ["[TOOL_CALLS]", "count", "[ARGS]", '{"must": 1, ', '"may": 2}'],
    "json": ['{"name": "count", "arguments": {', '"must": 1, "may"', ": 2}}"],
}  # fmt: skip


# ggml-org/llama.cpp#24351, ggml-org/llama.cpp#26472: arguments in another order than the schema's
@pytest.mark.parametrize("name", TEMPLATES)
def test_members_of_arguments_come_in_any_order(name: str, tmp_path: Path) -> None:
    llm = load(tmp_path / "model", CALLS[name], TEMPLATES[name])
    plain, offered = answer(llm), answer(llm, tools=TOOLS)
    assert offered.token_ids == plain.token_ids
    assert (calls_of(offered), offered.text) == ([("count", {"must": 1, "may": 2})], "")
    strict = [Tool(name="count", parameters=COUNTS, strict=True)]
    assert not any('"must": 1, "may"' in call.arguments for call in answer(llm, tools=strict).tool_calls)


def test_arguments_follow_their_schema_and_text_behind_them_is_free(tmp_path: Path) -> None:
    head = ["So.\n", "<tool_call>", '\n{"name": "look", "arguments": {']
    llm = load(
        tmp_path / "model", [*head, '"of": 3}', "}\n", "</tool_call>", "\nI look", " <now>."], TEMPLATES["hermes"]
    )
    assert '"of"' in answer(llm).text
    bound = answer(llm, tools=TOOLS, max_tokens=200)
    assert bound.text.startswith("So.")
    assert '"of"' not in bound.tool_calls[0].arguments
    right = [Tool(name="look", parameters={"type": "object", "properties": {"of": {"type": "integer"}}})]
    free = answer(llm, tools=right)
    assert free.token_ids == answer(llm).token_ids
    assert (calls_of(free), free.text) == ([("look", {"of": 3})], "So.\nI look <now>.")


# NousResearch/hermes-agent#14104, farion1231/cc-switch#5490, XiaomiMiMo/MiMo-Code#1733: one odd schema among many
@pytest.mark.parametrize("choice", ["auto", "required"])
def test_an_odd_schema_does_not_refuse_the_other_tools(choice: ToolChoice, tmp_path: Path) -> None:
    odd = {"type": "object", "properties": {
        "texts": {"type": "integer", "enum": ["60", "1440"]}, "range": {"type": "integer", "minimum": 5, "maximum": 3},
        "pattern": {"type": "string", "pattern": "("}, "kind": {"type": "any"}, "lost": {"$ref": "#/$defs/Lost"},
    }}  # fmt: skip
    tools = [Tool(name="odd", parameters=odd), Tool(name="none", parameters={"type": None}), *TOOLS]
    script = ["<tool_call>", '\n{"name": "count", "arguments": ', '{"must": 1}', "}\n", "</tool_call>"]
    llm = load(tmp_path, script, TEMPLATES["hermes"])
    [found] = llm.chat([{"role": "user", "content": "x"}], SamplingParams(temperature=0, max_tokens=60), tools=tools,
                       tool_choice=choice, use_tqdm=False)  # fmt: skip
    assert [call.name for call in found.tool_calls] == ["count"]


@pytest.mark.parametrize("choices", [1, 3])
def test_each_of_several_answers_has_its_calls(choices: int, tmp_path: Path) -> None:
    llm = load(tmp_path / "model", CALLS["hermes"], TEMPLATES["hermes"])
    completions = llm.chat(
        [{"role": "user", "content": "x"}], SamplingParams(temperature=0, max_tokens=60, n=choices), tools=TOOLS,
        use_tqdm=False,
    )  # fmt: skip
    assert [calls_of(each) for each in completions] == [[("count", {"must": 1, "may": 2})]] * choices


# Beside structured output a call and a text that is JSON can both come, in formats whose calls are JSON too.
@pytest.mark.parametrize("name", TEMPLATES)
def test_structured_output_beside_tools_is_kept_or_calls_come(name: str, tmp_path: Path) -> None:
    wanted = StructuredOutputs(json={"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]})
    text = load(tmp_path / "text", ['{"n": ', "12}"], TEMPLATES[name])
    assert json.loads(answer(text, tools=TOOLS, structured_outputs=wanted).text) == {"n": 12}


@pytest.fixture(scope="module")
def unknown(tmp_path_factory: pytest.TempPathFactory) -> LLM:
    """A model whose template describes tools in a format that is none of ours, and which calls as it is told."""
    xml = DESCRIBED + "{# <tool_call>\n<function=NAME> #}"
    return load(tmp_path_factory.mktemp("unknown"), ['{"name": "look", "arg', 'uments": {"at": "h', 'ome"}}'], xml)


def test_a_model_of_an_unknown_format_may_call_in_the_format_of_all(unknown: LLM) -> None:
    offered = answer(unknown, tools=TOOLS)
    assert (calls_of(offered), offered.text) == ([("look", {"at": "home"})], "")
    assert answer(unknown).text == '{"name": "look", "arguments": {"at": "home"}}'


@pytest.fixture
def two_calls(serve_script: Any) -> Iterator[httpx.Client]:
    first = ["Two:\n", "<tool_call>", '\n{"name": "look", "arguments": {', '"at": "a"}}\n']
    script = [*first, "</tool_call>\n<tool_call>", '{"name": "count", "argum', 'ents": {"must": 1}}', "\n</tool_call>"]
    with serve_script(script, chat_template=TEMPLATES["hermes"], added_tokens=["<tool_call>"]) as client:
        yield client


def test_over_http_calls_are_counted_and_streams_say_the_same(two_calls: httpx.Client) -> None:
    functions = [{"type": "function", "function": {"name": each.name, "parameters": each.parameters}} for each in TOOLS]
    body = {"messages": [{"role": "user", "content": "x"}], "temperature": 0, "max_tokens": 60, "tools": functions}
    whole = two_calls.post("/v1/chat/completions", json=body).json()["choices"][0]
    assert (whole["finish_reason"], whole["message"]["content"]) == ("tool_calls", "Two:")
    assert [call["function"]["name"] for call in whole["message"]["tool_calls"]] == ["look", "count"]
    one = two_calls.post("/v1/chat/completions", json=body | {"parallel_tool_calls": False}).json()["choices"][0]
    assert (one["finish_reason"], one["message"]["content"]) == ("tool_calls", "Two:")
    assert [call["function"]["arguments"] for call in one["message"]["tool_calls"]] == ['{"at": "a"}']
    events = two_calls.post("/v1/chat/completions", json=body | {"stream": True}).text.split("\n\n")
    deltas = [json.loads(event[6:])["choices"][0]["delta"] for event in events if event.startswith("data: {")]
    assert "".join(delta.get("content") or "" for delta in deltas) == "Two:"
    names = [call["function"].get("name") for delta in deltas for call in delta.get("tool_calls") or []]
    assert [name for name in names if name] == ["look", "count"]
