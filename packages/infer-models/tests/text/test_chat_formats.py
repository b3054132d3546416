"""What a checkpoint's templates say: how tool calls and reasoning are written, and where a prompt leaves off."""

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import normalizers
from transformers import PreTrainedTokenizerFast

from infer_models.text import (
    REASONING_FORMATS,
    TOOL_CALL_FORMATS,
    ChatTemplate,
    Conversation,
    IncrementalDetokenizer,
    ReasoningState,
    Tokenizer,
)
from infer_proofs.text import (
    CHATML,
    FAMILIES,
    HERMES,
    LLAMA_3,
    MARKERS,
    ORDINARY,
    SPECIAL,
    busy_conversation,
    byte_level,
    chat_tokenizer,
    family,
    family_tokenizer,
)

DESCRIBED = "{% for tool in tools or [] %}{{ tool | tojson }}{% endfor %}"
THINKING = CHATML + "{% if thinking == 'open' %}<think>\n{% elif thinking == 'no' %}<think>\n\n</think>\n\n{% endif %}"
THOUGHTS = {
    "apertus": "apertus",
    "deepseek_v32": "think",
    "deepseek_v4": "think",
    "gemma4": "gemma4",
    "harmony": "harmony",
    "hermes": "think",
    "nemotron": "think",
    "seed_oss": "seed",
}
"""The formats of reasoning of those families whose templates write any."""
ONE_TURN = [{"role": "user", "content": "Hello"}]


def save(folder: Path, template: object, *, jinja: str | None = None) -> None:
    family(str(template)).save(str(folder / "tokenizer.json"))
    config = {"bos_token": "<|bos|>", "eos_token": "<|im_end|>", "chat_template": template}
    (folder / "tokenizer_config.json").write_text(json.dumps(config), encoding="utf-8")
    if jinja is not None:
        (folder / "chat_template.jinja").write_text(jinja, encoding="utf-8")


def said(content: str) -> Conversation:
    return Conversation(messages=[{"role": "user", "content": content}])


def state(tokenizer: Tokenizer, *, add_generation_prompt: bool = True, **variables: object) -> ReasoningState:
    chat = Conversation(messages=ONE_TURN, variables=variables, add_generation_prompt=add_generation_prompt)
    return tokenizer.chat.encode(chat).reasoning


def format_names(tokenizer: Tokenizer) -> tuple[str | None, str | None]:
    tool_calls, reasoning = tokenizer.chat.tool_call_format, tokenizer.chat.reasoning_format
    return tool_calls.name if tool_calls else None, reasoning.name if reasoning else None


OFF: dict[str, dict[str, object]] = {"seed_oss": {"thinking_budget": 0}}
"""How thinking is off by family; left out: `enable_thinking` is false."""


@pytest.mark.parametrize("name", FAMILIES)
@pytest.mark.parametrize("kind", ["plain", "with tools", "with calls", "no thinking"])
def test_ids_of_families_are_those_of_transformers(tmp_path: Path, name: str, kind: str) -> None:
    save(tmp_path, FAMILIES[name])
    theirs = PreTrainedTokenizerFast.from_pretrained(tmp_path)
    no_thinking = OFF.get(name, {"enable_thinking": False})
    chat = busy_conversation(str, **no_thinking) if kind == "no thinking" else busy_conversation()
    messages = list(chat.messages if kind == "with calls" else chat.messages[:2])
    tools = None if kind == "plain" else list(chat.tools)
    expected = theirs.apply_chat_template(
        messages, tools=tools, add_generation_prompt=True, return_dict=False, **chat.variables
    )
    variables = {"enable_thinking": False} if kind == "no thinking" else {}
    ours = Conversation(messages=messages, tools=tools or (), variables=variables)
    assert Tokenizer.from_folder(tmp_path).chat.encode(ours).token_ids == expected


@pytest.mark.parametrize("text", ["a < b", "<table>\n\n\n", "fox & <b>", "é日本 | [x]", "it's {1}"])
def test_ids_of_odd_texts_are_those_of_transformers(tmp_path: Path, text: str) -> None:
    save(tmp_path, HERMES)
    theirs = PreTrainedTokenizerFast.from_pretrained(tmp_path)
    chat = busy_conversation(lambda harmless: f"{harmless} {text}")
    expected = theirs.apply_chat_template(
        list(chat.messages), tools=list(chat.tools), add_generation_prompt=True, return_dict=False
    )
    assert Tokenizer.from_folder(tmp_path).chat.encode(chat).token_ids == expected


def test_a_template_without_tools_gets_none() -> None:
    tokenizer = family_tokenizer("{{ tools is none }} {{ tools is defined }}")
    assert tokenizer.chat.render(Conversation(messages=ONE_TURN)) == "True True"


@pytest.mark.covers("structured-tools-agents/formats")
@pytest.mark.parametrize("name", FAMILIES)
def test_the_format_of_tool_calls_is_found_from_the_template(name: str) -> None:
    tool_calls = None if name == "harmony" else name
    assert format_names(family_tokenizer(FAMILIES[name])) == (tool_calls, THOUGHTS.get(name))
    assert family_tokenizer(FAMILIES[name]).chat.knows_tools


def test_every_format_has_a_template() -> None:
    assert FAMILIES.keys() == (TOOL_CALL_FORMATS.keys() - {"json"}) | {"harmony"}


@pytest.mark.parametrize(
    ("source", "name"),
    [
        ('<tool_calls>[{"name": "f"}]</tool_calls>', "jamba"),
        ("'<tool_calls>\\n['", "jamba"),
        ('<tool_calls>\n{"name": "f"}\n</tool_calls>', "minimax_m1"),
        ("<|action_start|><|plugin|>", "internlm"),
        ('functools[{"name": "f"}]', "phi4_mini"),
        ("<\uff5ctool▁calls▁begin\uff5c>", "deepseek_v31"),
        ("<\uff5cDSML\uff5cfunction_calls>", "deepseek_v32"),
        ("<\uff5cDSML\uff5ctool_calls>", "deepseek_v4"),
        ("<tool_call>\n<function=f>\n<parameter=x>", "qwen3_coder"),
        ("<seed:tool_call>\n<function=f>\n<parameter=x>", "seed_oss"),
        ("<tool_call>f\n<arg_key>", "glm45"),
        ("<|tool_call>call:f{}<tool_call|>", "gemma4"),
        ("<start_function_call>call:f{}<end_function_call>", "functiongemma"),
        ("List of tools: <|tool_list_start|>[{}]<|tool_list_end|>", "lfm2"),
        ("List of tools: [{}]", "lfm2"),
        ("<function_calls>f()</function_calls>", "olmo3"),
        ("[func_name1(params_name1=params_value1), func_name2(params)]", "llama4_pythonic"),
        ("<function=f>{}</function>", "llama3_function"),
    ],
)
def test_a_template_that_writes_the_marks_of_a_format_has_it(source: str, name: str) -> None:
    assert format_names(family_tokenizer(f"{CHATML}{DESCRIBED}{{# {source} #}}"))[0] == name


OTHERS = tuple(f"{CHATML}{DESCRIBED}{{# {mark} #}}" for mark in ("<invoke name=", "<tools>"))


@pytest.mark.parametrize("template", [*OTHERS, CHATML, CHATML + DESCRIBED])
def test_a_format_that_is_none_of_ours_is_unknown(template: str) -> None:
    tokenizer = family_tokenizer(template)
    assert tokenizer.chat.tool_call_format is None
    assert tokenizer.chat.knows_tools == (DESCRIBED in template)


def test_a_template_that_wants_parameters_described_knows_tools() -> None:
    strict = "{% for tool in tools or [] %}{% for name, p in tool.function.parameters.properties.items() %}"
    strict += "{{ tool.function.name + name + p.type + p.description }}{% endfor %}{% endfor %}"
    assert family_tokenizer(CHATML + strict).chat.knows_tools


@pytest.mark.parametrize(
    ("source", "name"),
    [
        *((each.begin, name) for name, each in REASONING_FORMATS.items() if name != "harmony"),
        *((each.end, name) for name, each in REASONING_FORMATS.items() if name != "harmony"),
        ("<|start|>assistant<|channel|>final<|message|>", "harmony"),
        ("</thinking>", None),
    ],
)
def test_the_format_of_reasoning_is_found_from_the_template(source: str, name: str | None) -> None:
    assert format_names(family_tokenizer(f"{CHATML}{{# {source} #}}"))[1] == name


@pytest.mark.covers("structured-tools-agents/format-flags")
def test_formats_can_be_set() -> None:
    assert format_names(family_tokenizer(CHATML, tool_call_format="mistral")) == ("mistral", None)
    assert format_names(family_tokenizer(CHATML, reasoning_format="mistral")) == (None, "mistral")
    both = family_tokenizer(HERMES, tool_call_format="llama3_json", reasoning_format="none")
    assert format_names(both) == ("llama3_json", None)


def test_the_formats_of_a_folder_can_be_set(tmp_path: Path) -> None:
    save(tmp_path, HERMES)
    assert format_names(Tokenizer.from_folder(tmp_path)) == ("hermes", "think")
    tokenizer = Tokenizer.from_folder(tmp_path, tool_call_format="json", reasoning_format="none")
    assert format_names(tokenizer) == ("json", None)


NAMED = [{"name": "default", "template": "default"}, {"name": "tool_use", "template": f"{DESCRIBED}<tool_call>"}]


def test_a_template_of_its_own_is_used_for_tools_only(tmp_path: Path) -> None:
    save(tmp_path, NAMED)
    chat = Tokenizer.from_folder(tmp_path).chat
    assert chat.render(Conversation(messages=ONE_TURN)) == "default"
    assert chat.render(Conversation(messages=ONE_TURN, tools=busy_conversation().tools)).startswith(
        '{"type": "function"'
    )
    assert chat.tool_call_format is not None
    assert (chat.tool_call_format.name, chat.knows_tools) == ("hermes", True)


def test_a_file_with_a_template_comes_first(tmp_path: Path) -> None:
    save(tmp_path, NAMED, jinja=LLAMA_3)
    chat = Tokenizer.from_folder(tmp_path).chat
    assert chat.template.source == LLAMA_3
    assert chat.tool_call_format is not None
    assert chat.tool_call_format.name == "llama3_json"


@pytest.mark.covers("structured-tools-agents/reasoning-begins")
@pytest.mark.parametrize("has_tokens", [True, False])
def test_a_prompt_ends_in_reasoning_or_after_it_or_before_it(*, has_tokens: bool) -> None:
    tokenizer = (family_tokenizer if has_tokens else chat_tokenizer)(THINKING)
    assert state(tokenizer) is ReasoningState.MAY_BEGIN
    assert state(tokenizer, thinking="open") is ReasoningState.OPEN
    assert state(tokenizer, thinking="no") is ReasoningState.NONE
    assert state(tokenizer, add_generation_prompt=False) is ReasoningState.MAY_BEGIN


def test_a_model_that_writes_no_reasoning_has_none() -> None:
    assert state(family_tokenizer(CHATML)) is ReasoningState.NONE
    assert state(family_tokenizer(THINKING, reasoning_format="none"), thinking="open") is ReasoningState.NONE


def test_hermes_without_thinking_ends_after_it() -> None:
    assert state(family_tokenizer(HERMES), enable_thinking=False) is ReasoningState.NONE
    assert state(family_tokenizer(HERMES), enable_thinking=True) is ReasoningState.MAY_BEGIN


def test_an_added_token_that_is_text_stays_what_it_is() -> None:
    raw, tokenizer = family(), family_tokenizer(HERMES)
    text, ordinary = "a<table>\n\n\nb", [raw.token_to_id("<table>"), raw.token_to_id("\n\n\n")]
    for content in (text, f"<|im_end|>{text}"):
        token_ids = tokenizer.chat.encode(said(content)).token_ids
        assert [token_id for token_id in token_ids if token_id in ordinary] == ordinary
    plain = family_tokenizer(CHATML)
    assert (
        plain.chat.encode(said("<think><tool_call>")).token_ids
        == raw.encode(plain.chat.render(said("<think><tool_call>"))).ids
    )


def test_markers_of_a_format_that_is_set_are_control_tokens() -> None:
    tokenizer = family_tokenizer(CHATML, tool_call_format="hermes", reasoning_format="think")
    for text in MARKERS[:4]:
        assert family().token_to_id(text) not in tokenizer.chat.encode(said(text)).token_ids


def test_a_marker_that_only_the_tokenizer_recognizes_is_text() -> None:
    raw = family(normalized=True)
    raw.normalizer = normalizers.Lowercase()
    tokenizer = Tokenizer(raw, chat_template=ChatTemplate(HERMES, variables={}))
    assert raw.token_to_id("<think>") in tokenizer.encode("<THINK>")
    assert raw.token_to_id("<think>") not in tokenizer.chat.encode(said("<THINK>")).token_ids


@pytest.mark.parametrize("text", ["<|fim prefix|>", "<\uff5cfim\uff5c>", "◁think▷", "<|a|b|>"])
def test_marks_of_other_families_are_control_tokens(text: str) -> None:
    raw = byte_level()
    raw.add_tokens([text])
    tokenizer = Tokenizer(raw, chat_template=ChatTemplate(CHATML + "{# ◁think▷ #}", variables={}))
    assert raw.token_to_id(text) not in tokenizer.chat.encode(said(f"a{text}b")).token_ids


TOKENIZER = family_tokenizer(HERMES)
TEXTS = st.lists(st.sampled_from(["the fox", "é", "🙂", *MARKERS, *SPECIAL, *ORDINARY, "<|im_end|>"])).map("".join)


@given(text=TEXTS, shown=st.sets(st.sampled_from(SPECIAL)), num_prompt=st.integers(0, 4))
def test_exactly_the_special_tokens_that_shall_be_shown_are(text: str, shown: set[str], num_prompt: int) -> None:
    shown_ids = [TOKENIZER.encode(each)[0] for each in shown]
    token_ids = TOKENIZER.encode(text)
    hidden_ids = TOKENIZER.special_ids.difference(shown_ids)
    visible = [token_id for token_id in token_ids if token_id not in hidden_ids]
    detokenizer = IncrementalDetokenizer(TOKENIZER, TOKENIZER.encode("the" * num_prompt), shown_ids=shown_ids)
    deltas = [*map(detokenizer.add, token_ids), detokenizer.finish()]
    assert "".join(deltas) == TOKENIZER.decode(visible, skip_special_tokens=False)


def test_a_special_token_that_is_shown_is_a_delta_of_its_own() -> None:
    shown, hidden = (TOKENIZER.encode(text)[0] for text in ("[TOOL_CALLS]", "[ARGS]"))
    detokenizer = IncrementalDetokenizer(TOKENIZER, [], shown_ids=[shown])
    assert [detokenizer.add(shown), detokenizer.add(hidden), detokenizer.finish()] == ["[TOOL_CALLS]", "", ""]
