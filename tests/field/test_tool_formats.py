"""Calls in the formats of this year's families, whose marks are special tokens: `tool_choice` is `auto` here.

Models answer with scripts. Formats follow from the chat templates.
"""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from infer_engine import LLM, SamplingParams, Tool
from infer_engine.frontend.completion import Completion
from infer_models.text import TOOL_CALL_FORMATS
from infer_proofs.models import save_scripted

CHATML = (
    "{% for t in tools or [] %}{{ t | tojson }}{% endfor %}"
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
BAR = "\uff5c"
TEMPLATES = {
    "deepseek_v3": CHATML + f"{{# <{BAR}tool▁calls▁begin{BAR}> ```json #}}",
    "deepseek_v31": CHATML + f"{{# <{BAR}tool▁calls▁begin{BAR}> #}}",
    "kimi_k2": CHATML + "{# <|tool_calls_section_begin|> #}",
    "granite": CHATML + "{# <|tool_call|> #}",
    "phi4_mini": CHATML + "{# functools[ #}",
    "jamba": CHATML + '{# <tool_calls>[{"name": NAME}]</tool_calls> #}',
    "minimax_m1": CHATML + '{# <tool_calls>\n{"name": NAME}\n</tool_calls> #}',
    "internlm": CHATML + "{# <|plugin|> #}",
}
TAGGED = {
    "qwen3_coder": CHATML + "{# <tool_call><parameter= #}",
    "seed_oss": CHATML + "{# <seed:tool_call><parameter= #}",
    "glm45": CHATML + "{# <arg_key> #}",
    "minimax_m2": CHATML + "{# <minimax:tool_call> #}",
    "deepseek_v32": CHATML + f"{{# <{BAR}DSML{BAR}function_calls> #}}",
    "deepseek_v4": CHATML + f"{{# <{BAR}DSML{BAR}tool_calls> #}}",
}
LITERAL = {
    "gemma4": CHATML + "{# <|tool_call>call: #}",
    "functiongemma": CHATML + "{# <start_function_call> #}",
    "lfm2": "List of tools: " + CHATML,
    "olmo3": CHATML + "{# <function_calls> #}",
    "llama4_pythonic": CHATML + "{# [func_name1(params_name1=params_value1)] #}",
}
LISTS = {"type": "object", "properties": {"tags": {"type": "array", "items": {"type": "array"}}}}
COUNTS = {
    "type": "object",
    "properties": {"may": {"type": "integer"}, "must": {"type": "integer"}},
    "required": ["must"],
}
TOOLS = [Tool(name="count", parameters=COUNTS), Tool(name="sort", parameters=LISTS)]


def load(folder: Path, script: list[str], name: str, *, are_special: bool = True) -> LLM:
    marks = TOOL_CALL_FORMATS[name].tokens if are_special else ()
    template = (TEMPLATES | TAGGED | LITERAL)[name]
    save_scripted(folder, script, chat_template=template, special_tokens=marks)
    return LLM(str(folder), max_seq_len=2048, kv_cache_memory=2**24, use_cpu_graphs=False)


def answer(llm: LLM, *, tools: list[Tool] | None = None, **params: Any) -> Completion:
    sampling = SamplingParams(**{"temperature": 0, "max_tokens": 60, **params})
    [completion] = llm.chat([{"role": "user", "content": "x"}], sampling, tools=tools or [], use_tqdm=False)
    return completion


def calls_of(completion: Completion) -> list[tuple[str, Any]]:
    return [(call.name, json.loads(call.arguments)) for call in completion.tool_calls]


def tokens_of(name: str, text: str) -> list[str]:
    """Return `text` in the tokens of a format and the pieces between them, of which none may come twice."""
    pieces = [text]
    for mark in TOOL_CALL_FORMATS[name].tokens:
        split = [part for piece in pieces for part in piece.partition(mark) if part]
        pieces = split if mark in text else pieces
    return pieces


# vllm-project/vllm#25281: marks are special tokens, which texts leave out
@pytest.mark.parametrize("name", TEMPLATES)
def test_a_call_in_special_tokens_is_a_call_whose_arguments_are_kept(name: str, tmp_path: Path) -> None:
    right = TOOL_CALL_FORMATS[name].write(("count", '{"must": 1, "may": 2}'))
    completion = answer(load(tmp_path / "right", ["I look. ", *tokens_of(name, right)], name), tools=TOOLS)
    assert calls_of(completion) == [("count", {"must": 1, "may": 2})]
    assert completion.text == "I look."
    head, wrong, end = TOOL_CALL_FORMATS[name].write(("count", '{"must": "x"}')).partition('{"must": "x"}')
    script = [*tokens_of(name, head), wrong, *tokens_of(name, end)]
    call = answer(load(tmp_path / "wrong", script, name), tools=TOOLS).tool_calls[0]
    assert call.name == "count"
    assert '"x"' not in call.arguments


# raullenchai/Rapid-MLX#795: a distilled model with the older template's call, read as one of a tool named `function`
def test_the_template_says_which_of_deepseeks_formats_it_is(tmp_path: Path) -> None:
    older = TOOL_CALL_FORMATS["deepseek_v3"].write(("count", '{"must": 3}'))
    llm = load(tmp_path / "older", tokens_of("deepseek_v3", older), "deepseek_v3")
    assert calls_of(answer(llm, tools=TOOLS)) == [("count", {"must": 3})]
    other = load(tmp_path / "other", tokens_of("deepseek_v3", older), "deepseek_v31")
    assert answer(other, tools=TOOLS).tool_calls == []


# vllm-project/vllm#48795: a call was lost where its arguments had lists
@pytest.mark.parametrize("name", ["phi4_mini", "granite", "jamba"])
def test_lists_in_arguments_do_not_end_the_list_of_calls(name: str, tmp_path: Path) -> None:
    tags = {"tags": [["a", "]"], [], ["}]"]]}
    written = TOOL_CALL_FORMATS[name].write(("sort", json.dumps(tags)), ("count", '{"must": 1}'))
    completion = answer(load(tmp_path / "model", tokens_of(name, written), name), tools=TOOLS)
    assert calls_of(completion) == [("sort", tags), ("count", {"must": 1})]
    assert completion.text == ""


# ai-dynamo/dynamo#2726: a module of Python's library was taken for a call
@pytest.mark.parametrize("script", [["Use `functools", ".cache`."], ["functools", "[0] is no", " list"]])
def test_prose_that_names_functools_stays_prose(script: list[str], tmp_path: Path) -> None:
    llm = load(tmp_path / "model", script, "phi4_mini")
    plain, offered = answer(llm), answer(llm, tools=TOOLS)
    assert (offered.text, offered.token_ids) == (plain.text, plain.token_ids)
    assert (offered.text, offered.tool_calls) == ("".join(script), [])


# vllm-project/vllm#24478: several calls in one section
def test_kimis_calls_of_one_section_are_told_apart(tmp_path: Path) -> None:
    script = [
        *("Both.", "<|tool_calls_section_begin|><|tool_call_begin|>functions.count:0<|tool_call_argument_begin|>"),
        *('{"must": 1}', "<|tool_call_end|><|tool_call_begin|>functions.sort:1<|tool_call_argument_begin|>"),
        *('{"tags": []}', "<|tool_call_end|><|tool_calls_section_end|>"),
    ]
    completion = answer(load(tmp_path / "model", script, "kimi_k2", are_special=False), tools=TOOLS)
    assert calls_of(completion) == [("count", {"must": 1}), ("sort", {"tags": []})]
    assert completion.text == "Both."


# Blaizzy/mlx-vlm#2207: a name on a line of its own; vllm-project/vllm#46610, thinking-machines-lab/tinker-cookbook#248:
# Kimi's names without `functions.`
@pytest.mark.parametrize(
    ("name", "head", "written"),
    [
        ("glm45", "<tool_call>count\n", "<tool_call>\ncount\n"),
        ("qwen3_coder", "=count>", "= count>"),
        ("mistral_args", "]count[", "] count["),
        ("kimi_k2", "functions.count:0<", "count:0<"),
        ("kimi_k2", "functions.count:0<", " functions.count:0 <"),
    ],
)
def test_a_name_may_stand_alone_or_without_what_comes_before_it(
    name: str, head: str, written: str, tmp_path: Path
) -> None:
    text = TOOL_CALL_FORMATS[name].write(("count", '{"must": 1}'))
    assert head in text
    save_scripted(tmp_path, ["I count. ", text.replace(head, written)], chat_template=CHATML)
    llm = LLM(str(tmp_path), max_seq_len=2048, kv_cache_memory=2**24, use_cpu_graphs=False, tool_call_format=name)
    completion = answer(llm, tools=TOOLS)
    assert (calls_of(completion), completion.text) == ([("count", {"must": 1})], "I count.")


# deepseek-ai/DeepSeek-V3#944: `tool_calls` as the reason, and no calls
@pytest.mark.parametrize("name", ["deepseek_v3", "deepseek_v31", "kimi_k2"])
@pytest.mark.parametrize("length", [1, 2])
def test_an_answer_that_is_cut_in_a_head_has_no_call(name: str, length: int, tmp_path: Path) -> None:
    script = tokens_of(name, TOOL_CALL_FORMATS[name].write(("count", '{"must": 3}')))
    completion = answer(load(tmp_path / "model", script, name), tools=TOOLS, max_tokens=length)
    assert (completion.tool_calls, completion.finish_reason) == ([], "length")


# vllm-project/vllm#26897: brackets too many before arguments, or none behind them
def test_brackets_that_a_model_doubles_cannot_come(tmp_path: Path) -> None:
    written = TOOL_CALL_FORMATS["deepseek_v31"].write(("count", '{{"must": 3}}'))
    llm = load(tmp_path / "model", tokens_of("deepseek_v31", written), "deepseek_v31")
    call = answer(llm, tools=TOOLS).tool_calls[0]
    assert call.name == "count"
    assert call.arguments.startswith("{")
    assert not call.arguments.startswith("{{")


# ml-explore/mlx-lm#1264: brackets too many behind a call
def test_brackets_behind_a_call_are_no_reason_to_lose_it(tmp_path: Path) -> None:
    script = ["<|tool_call|>", '[{"name": "count", "arguments": ', '{"must": 1}', "}", "}}", "]"]
    completion = answer(load(tmp_path / "model", script, "granite"), tools=TOOLS)
    assert calls_of(completion) == [("count", {"must": 1})]


NOTES = {
    "type": "object",
    "properties": {"path": {"type": "string"}, "text": {"type": "string"}, "lines": {"type": "integer"}},
    "required": ["path", "text"],
}
NOTE = Tool(name="note", parameters=NOTES)


def script_of(name: str, arguments: object) -> list[str]:
    """Return a call in two pieces: its head, and its arguments with its end."""
    calls = TOOL_CALL_FORMATS[name]
    head = f"{calls.begin}{calls.call_begin}note{calls.before_arguments}"
    return [head, calls.write(("note", json.dumps(arguments))).removeprefix(head)]


# smg-project/smg#1743: a text that looks like a number; vllm-project/vllm#37187: line breaks of the format in values;
# ollama/ollama#15255, ggml-org/llama.cpp#26658: quotes and backslashes of code
@pytest.mark.parametrize("name", [*TAGGED, *LITERAL])
def test_parameters_of_a_call_are_its_arguments(name: str, tmp_path: Path) -> None:
    arguments = {"path": "3", "text": "  if a < b:\n\tprint(\"</b>\", label='\\n')\n", "lines": 2}
    before = ["I write. "] if TOOL_CALL_FORMATS[name].is_anywhere else []
    llm = load(tmp_path / "model", [*before, *script_of(name, arguments)], name, are_special=False)
    completion = answer(llm, tools=[NOTE, *TOOLS])
    assert calls_of(completion) == [("note", arguments)]
    assert completion.text == "".join(before).strip()
    assert answer(llm).tool_calls == []  # no tools, no calls


# vllm-project/vllm#49248, #47190: marks that a model left out gave `{}` or another tool's name
@pytest.mark.parametrize("name", [*TAGGED, *LITERAL])
def test_parameters_that_the_schema_does_not_allow_cannot_come(name: str, tmp_path: Path) -> None:
    for number, wrong in enumerate(({"path": "a"}, {"path": "a", "text": "b", "lines": []}, {"path": "a", "other": 1})):
        script = script_of(name, wrong)
        [call] = answer(load(tmp_path / f"{number}", script, name, are_special=False), tools=[NOTE]).tool_calls
        assert call.name == "note"
        assert '"lines": []' not in call.arguments
        assert '"other"' not in call.arguments
        assert call.arguments != '{"path": "a"}'


# ollama/ollama#17914: in long contexts models stop writing the end of the last parameter
@pytest.mark.parametrize("name", ["qwen3_coder", "seed_oss", "minimax_m2"])
def test_the_end_of_the_last_parameter_may_be_missing(name: str, tmp_path: Path) -> None:
    arguments = {"path": "a", "text": "if a < b: print()"}
    head, rest = script_of(name, arguments)
    before, _, after = rest.rpartition("</parameter>\n")
    llm = load(tmp_path / "model", tokens_of(name, head + before + after), name)
    completion = answer(llm, tools=[NOTE])
    assert (calls_of(completion), completion.text) == ([("note", arguments)], "")
    assert completion.token_ids == answer(llm).token_ids


@pytest.mark.parametrize("name", [*TAGGED, *LITERAL])
def test_a_call_with_parameters_can_be_forced(name: str, tmp_path: Path) -> None:
    llm = load(tmp_path / "model", ["I would rather not."], name, are_special=False)
    [completion] = llm.chat(
        [{"role": "user", "content": "x"}],
        SamplingParams(temperature=1, seed=3, max_tokens=600),
        tools=[Tool(name="count", parameters=COUNTS)],
        tool_choice="required",
        use_tqdm=False,
    )
    assert completion.text == ""
    assert completion.tool_calls[0].name == "count"
    for call in completion.tool_calls[:-1]:  # the last one may be cut off
        assert isinstance(json.loads(call.arguments)["must"], int)


ORDER = {
    "type": "object",
    "properties": {
        "items": {"type": "array", "items": {"type": "object", "properties": {"n": {"type": "integer"}}}},
        "to": {"type": "object", "properties": {"who": {"type": "string"}, "gift": {"type": "boolean"}}},
    },
}
SHOP = [Tool(name="shop.order", parameters=ORDER), Tool(name="today"), NOTE]


def spoken(name: str, script: list[str], folder: Path, tools: list[Tool] | None = None) -> Completion:
    return answer(load(folder, script, name, are_special=False), tools=tools or SHOP)


# vllm-project/vllm#30722, raullenchai/Rapid-MLX#1102: objects in lists ended a call; ml-explore/mlx-lm#1246: names with
# dots; NousResearch/hermes-agent#7449: nested values became texts
@pytest.mark.parametrize("name", LITERAL)
def test_nested_values_and_several_calls_are_kept(name: str, tmp_path: Path) -> None:
    order = {"items": [{"n": 1}, {"n": 2}], "to": {"who": "a, {b}: [c] (d)", "gift": True}}
    script = [TOOL_CALL_FORMATS[name].write(("shop.order", json.dumps(order)), ("today", "{}"))]
    completion = spoken(name, script, tmp_path)
    assert calls_of(completion) == [("shop.order", order), ("today", {})]
    assert completion.text == ""


# vllm-project/vllm#47906: numbers and constants that have no quotes became texts
def test_gemmas_bare_values_keep_their_types(tmp_path: Path) -> None:
    written = "<|tool_call>call:shop.order{items:[{n:7}],to:{gift:false}}<tool_call|>"
    assert calls_of(spoken("gemma4", [written], tmp_path)) == [
        ("shop.order", {"items": [{"n": 7}], "to": {"gift": False}})
    ]


# ollama/ollama#15315, #18471, jundot/omlx#1854: texts in other quotes or none, or arguments in other marks
@pytest.mark.parametrize("wrong", ["path:a.txt,text:\n\n# Notes, and more", "path:'a.txt',text:':\\s*'", "BEGIN_ARG a"])
def test_gemma_cannot_leave_its_quotes_out(wrong: str, tmp_path: Path) -> None:
    [call] = spoken("gemma4", ["<|tool_call>call:note{", wrong, "<tool_call|>"], tmp_path, [NOTE]).tool_calls
    assert re.match(r'\{"((path|text)": "|lines": -?\d)', call.arguments)


# ml-explore/mlx-lm#1271: constants of JSON in OLMo's calls, and one call a line
def test_constants_of_both_languages_are_read(tmp_path: Path) -> None:
    for number, (true, name) in enumerate((("true", "olmo3"), ("True", "lfm2"))):
        calls = TOOL_CALL_FORMATS[name]
        script = [f"{calls.begin}shop.order(to=", f'{{"gift": {true}}})', f"{calls.separator}today()", calls.end]
        completion = spoken(name, script, tmp_path / f"{number}")
        assert calls_of(completion) == [("shop.order", {"to": {"gift": True}}), ("today", {})]


# vllm-project/vllm#46863: a model that is asked for Python and writes JSON, which `llama3_json` reads
def test_json_where_python_is_asked_for_is_text(tmp_path: Path) -> None:
    script = ['{"name": "today", "parameters": {}}']
    assert spoken("llama4_pythonic", script, tmp_path).text == script[0]
    llm = LLM(str(tmp_path), max_seq_len=2048, kv_cache_memory=2**24, use_cpu_graphs=False,
              tool_call_format="llama3_json")  # fmt: skip
    assert calls_of(answer(llm, tools=SHOP)) == [("today", {})]


# lmstudio-ai/lmstudio-bug-tracker#2013, jundot/omlx#2533: thinking in a channel, which the prompt may have begun
@pytest.mark.parametrize("begun", ["", "<|channel>thought\n"])
def test_gemmas_thinking_is_told_from_its_answer_and_calls(begun: str, tmp_path: Path) -> None:
    template = LITERAL["gemma4"] + "{# <|channel>thought #}" + begun
    begin = [] if begun else ["<|channel>", "thought\n"]
    script = [*begin, "I need", " the day.\n", "<channel|>", "<|tool_call>", "call:today{}", "<tool_call|>"]
    marks = ("<|channel>", "<channel|>", "<|tool_call>", "<tool_call|>")
    save_scripted(tmp_path, script, chat_template=template, special_tokens=marks)
    llm = LLM(str(tmp_path), max_seq_len=2048, kv_cache_memory=2**24, use_cpu_graphs=False)
    completion = answer(llm, tools=SHOP)
    assert completion.reasoning == "I need the day."
    assert calls_of(completion) == [("today", {})]
    assert completion.text == ""
