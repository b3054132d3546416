"""No text of a conversation becomes a control token, whatever it spells and whatever a template does with it."""

import itertools
from collections.abc import Callable

import pytest
import tokenizers
from hypothesis import example, given
from hypothesis import strategies as st
from tokenizers import pre_tokenizers

from infer_models.text import ChatTemplate, ChatTemplateError, Conversation, ReasoningState, Tokenizer
from infer_proofs.text import (
    CALL_ID,
    CHATML,
    FAMILIES,
    HERMES,
    MARKERS,
    NUM_TEXTS,
    RARE,
    SPECIAL,
    busy_conversation,
    byte_fallback,
    byte_level,
    control_ids,
    family_tokenizer,
)

CONTROL = ["<|im_end|>", "<|fim_prefix|>", *SPECIAL, *RARE, *MARKERS]
WORDS = ["think", "/think", "im_end", "tool_call", "/tool_call", "INST", "inst", "Think", "th", "ink", "k>", "<th"]
TRICKS = [
    "<|",
    "|>",
    "<",
    ">",
    "[",
    "]",
    "\u0131NST",
    "thin\u212a",
    "<th ink>",
    "\U00020000",
    "\U000f0000",
    "\ufdd0",
    "\n",
    " ",
    '"',
    "\\",
]
TEXTS = st.one_of(st.sampled_from(CONTROL + WORDS), st.lists(st.sampled_from(CONTROL + WORDS + TRICKS)).map("".join))
TOKENIZERS = {name: family_tokenizer(template) for name, template in FAMILIES.items()}
NORMALIZED = {name: family_tokenizer(template, normalized=True) for name, template in FAMILIES.items()}
CHATS = {**TOKENIZERS, **{f"{name}, normalized": tokenizer for name, tokenizer in NORMALIZED.items()}}
NAMES = [name if name in TOKENIZERS else pytest.param(name, marks=pytest.mark.full) for name in CHATS]

# What templates may do with a user's text `x` and with another one, `y`.
MANGLING = """\
{{ x }}
{{ x | tojson }}
{{ x | tojson(ensure_ascii=true) }}
{{ {x: [y]} }}
{{ x | trim }}
{{ x ~ y }}
{{ x | upper }}
{{ x | lower }}
{{ x | title }}
{{ [x, y] | join }}
{{ [x, y] | join('think') }}
{{ x.split('</think>')[-1] }}
{{ x.split('>') | join }}
{{ x[1:] }}{{ y[:-1] }}
{{ x | reverse }}
<{{ x }}
<|{{ x }}
{{ x }}|>
{{ x }}>
<th{{ x }}
{{ x }}ink>
<{{ x }}>
<{{ x }}{{ y }}>
</{{ x }}>
<|{{ x }}|>
<|im_{{ x }}|>
[{{ x }}]
<th{{ x }}>
<{{ x | lower }}>
[{{ x | upper }}]
<{{ x | trim }}>
<{{ x.split('/')[-1] }}>
<{{ x | replace(' ', '') }}>
<{{ x | replace(' ', '_') }}>
<{% for c in x %}{{ c }}{% endfor %}>
{% for c in x %}<{{ c }}>{% endfor %}""".splitlines()
WRAPPED = "{{% set x, y = messages[0].content, messages[0].name %}}<|im_start|>{}<|im_end|><think>{{# </think>{} #}}"


def mangling(snippet: str) -> Tokenizer:
    return family_tokenizer(WRAPPED.format(snippet, "".join(MARKERS)))


MANGLERS = {snippet: mangling(snippet) for snippet in MANGLING}


def say(content: str, **fields: object) -> Conversation:
    return Conversation(messages=[{"role": "user", "content": content, **fields}])


def attack(name: str, text: Callable[[], str]) -> Conversation:
    """A conversation of attacks in every place, but for the ids that Mistral's template refuses."""
    return busy_conversation(lambda harmless: CALL_ID if harmless == CALL_ID and "mistral" in name else text())


# Marks as DeepSeek's `DSML` may begin within one another: what moves one is told from what a template looks for.
@pytest.mark.parametrize("text", ["ads", "no", "\uff5c", "DSML", "\uff5cDSML", "DSML\uff5cDSML", "ads\uff5c"])
def test_where_marks_can_overlap_a_template_sees_the_words_that_it_looks_for(text: str) -> None:
    mark = "\uff5cDSML\uff5c"
    template = "{{ m }} {{ 'yes' if m == 'ads' }} {{ m | upper }}\uff5c{{ m }}" + mark
    tokenizer = family_tokenizer("{% set m = messages[0].content %}" + template)
    chat = Conversation(messages=[{"role": "user", "content": text}])
    encoded = tokenizer.chat.encode(chat).token_ids
    assert tokenizer.decode(encoded, skip_special_tokens=False) == tokenizer.chat.render(chat)
    assert control_ids(tokenizer, chat) == [tokenizer.token_to_id(mark)]
    assert encoded[-1] == tokenizer.token_to_id(mark)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("text", CONTROL + WORDS + TRICKS)
def test_one_text_in_every_place_becomes_no_control_token(name: str, text: str) -> None:
    assert control_ids(CHATS[name], attack(name, lambda: text)) == control_ids(CHATS[name], busy_conversation())


@pytest.mark.covers("structured-tools-agents/no-control-tokens")
@pytest.mark.parametrize("name", CHATS)
@given(data=st.data())
def test_texts_in_all_places_become_no_control_tokens(name: str, data: st.DataObject) -> None:
    chat = attack(name, lambda: data.draw(TEXTS.filter(bool)))
    assert control_ids(CHATS[name], chat) == control_ids(CHATS[name], busy_conversation())


@pytest.mark.parametrize("name", TOKENIZERS)
@pytest.mark.parametrize("text", ["<|im_end|>", "<|fim_prefix|>", "[TOOL_CALLS]", "</think>", "</tool_call>"])
def test_a_text_in_any_one_place_becomes_no_control_token(name: str, text: str) -> None:
    expected = control_ids(TOKENIZERS[name], busy_conversation())
    for place in range(NUM_TEXTS):
        places = itertools.count()
        chat = busy_conversation(lambda harmless: text if next(places) == place and harmless != CALL_ID else harmless)  # noqa: B023 - used at once
        assert control_ids(TOKENIZERS[name], chat) == expected


@pytest.mark.covers("structured-tools-agents/no-control-tokens")
@pytest.mark.parametrize("snippet", MANGLING)
@given(x=TEXTS, y=TEXTS)
@example(x="think", y="")
@example(x="th", y="ink")
@example(x="/think", y="/")
@example(x="im_end", y="|")
@example(x="end", y="|")
@example(x="inst", y="x")
@example(x="\u0131nst", y="x")
@example(x="thin\u212a", y="x")
@example(x="tool call", y="x")
@example(x="ink", y="x")
@example(x="TH", y="INK")
@example(x="<|im_end|></think>a", y="<think>")
def test_no_template_makes_a_control_token_of_texts(snippet: str, x: str, y: str) -> None:
    tokenizer = MANGLERS[snippet]
    assert control_ids(tokenizer, say(x, name=y)) == control_ids(tokenizer, say("a", name="b"))


@pytest.mark.parametrize(
    ("token", "snippet", "text"),
    [("<think>", "<{{ x | lower }}>", "THIN\u212a"), ("[FIST]", "[{{ x | upper }}]", "\ufb01\ufb06")],
)
def test_no_change_of_case_makes_a_control_token(token: str, snippet: str, text: str) -> None:
    raw = byte_level()
    raw.add_special_tokens([token])
    template = ChatTemplate(WRAPPED.format(snippet, token), variables={})
    token_ids = Tokenizer(raw, chat_template=template).chat.encode(say(text, name="")).token_ids
    assert token_ids.count(raw.get_vocab()[token]) == WRAPPED.format("", token).split("#")[0].count(token)


@pytest.mark.parametrize("name", ["think", "thinking", "content", "properties", "type", "arguments"])
def test_names_of_arguments_and_properties_become_no_control_tokens(name: str) -> None:
    raw = byte_level()
    raw.add_special_tokens([f"<{name}>"])
    template = (
        "{% for m in messages if m.tool_calls %}"
        "{% for key in m.tool_calls[0].function.arguments %}<{{ key }}>{% endfor %}"
        "{% for key in tools[0].function.parameters.properties %}<{{ key }}>{% endfor %}"
        "{% endfor %}{{ tools | tojson }}<|im_end|>"
    )
    tokenizer = Tokenizer(raw, chat_template=ChatTemplate(template, variables={}))
    parameters = {"type": "object", "properties": {name: {"type": "string", "properties": {name: {}}}}}
    call = {"id": "1", "type": "function", "function": {"name": "f", "arguments": {name: {name: 1}}}}
    chat = Conversation(
        messages=[{"role": "assistant", "content": "", "tool_calls": [call]}],
        tools=[{"type": "function", "function": {"name": "f", "description": "", "parameters": parameters}}],
    )
    token_ids = tokenizer.chat.encode(chat).token_ids
    assert [token_id for token_id in token_ids if token_id in tokenizer.special_ids] == tokenizer.encode("<|im_end|>")


@given(value=TEXTS)
@example(value="think")
def test_variables_become_no_control_tokens(value: str) -> None:
    tokenizer = family_tokenizer(
        "<|im_start|>{{ mode }}<{{ mode }}>{{ more | tojson }}</think>{{ messages[0].content }}<think>"
    )
    chats = [Conversation(messages=say("a").messages, variables={"mode": x, "more": {x: [x]}}) for x in (value, "a")]
    assert control_ids(tokenizer, chats[0]) == control_ids(tokenizer, chats[1])


def test_variables_cannot_replace_the_conversation_or_the_special_tokens() -> None:
    for name in ("messages", "tools", "add_generation_prompt", "bos_token", "eos_token", "a b"):
        with pytest.raises(ChatTemplateError, match="cannot be set"):
            TOKENIZERS["hermes"].chat.encode(Conversation(messages=say("a").messages, variables={name: "x"}))


@pytest.mark.parametrize("normalized", [False, True])
@given(data=st.data())
@example(data=None)
def test_texts_reach_the_model_unchanged(normalized: bool, data: st.DataObject | None) -> None:  # noqa: FBT001
    tokenizer = (NORMALIZED if normalized else TOKENIZERS)["hermes"]
    chat = busy_conversation(lambda harmless: data.draw(TEXTS.filter(bool)) if data else f"<think>{harmless}<|im_end|>")
    text = tokenizer.decode(tokenizer.chat.encode(chat).token_ids, skip_special_tokens=False)
    assert text == tokenizer.chat.render(chat)


def test_texts_in_mappings_reach_the_model_unchanged() -> None:
    tokenizer = mangling("{{ messages }}")
    chat = say("<|im_end|>, <think>")
    assert tokenizer.decode(tokenizer.chat.encode(chat).token_ids, skip_special_tokens=False) == tokenizer.chat.render(
        chat
    )


def test_a_messages_text_does_not_move_a_control_token() -> None:
    raw = byte_level()
    raw.add_special_tokens(["]~b]"])
    tokenizer = Tokenizer(raw, chat_template=ChatTemplate("{{ messages[0].content }}]~b]after", variables={}))
    token_ids = tokenizer.chat.encode(say("]~b")).token_ids
    end = token_ids.index(tokenizer.vocab_size - 1)
    assert (tokenizer.decode(token_ids[:end]), tokenizer.decode(token_ids[end + 1 :])) == ("]~b", "after")


@pytest.mark.parametrize("content", ["the fox", "the [INST]fox", "the<table> fox[INST]"])
def test_no_space_is_added_within_a_prompt(content: str) -> None:
    raw = byte_fallback()
    raw.normalizer = None
    raw.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first", split=False)
    raw.decoder = tokenizers.decoders.Sequence(
        [tokenizers.decoders.Replace("▁", " "), tokenizers.decoders.ByteFallback(), tokenizers.decoders.Fuse()]
    )
    raw.add_special_tokens(["[INST]", "[/INST]"])
    raw.add_tokens(["<table>"])
    tokenizer = Tokenizer(raw, chat_template=ChatTemplate("x[INST]{{ messages[0].content }}[/INST]", variables={}))
    token_ids = tokenizer.chat.encode(say(content)).token_ids
    assert tokenizer.decode(token_ids, skip_special_tokens=False) == f" x[INST]{content}[/INST]"
    assert token_ids.count(raw.get_vocab()["[INST]"]) == 1
    assert token_ids.count(raw.get_vocab()["<table>"]) == content.count("<table>")


def test_a_text_of_all_rare_characters_is_marked_or_refused() -> None:
    tokenizer = TOKENIZERS["hermes"]
    rare, private = "".join(map(chr, range(0x20000, 0x2A6E0))), "".join(map(chr, range(0xF0000, 0x110000)))
    assert control_ids(tokenizer, say(rare + "<|im_end|>")) == control_ids(tokenizer, say("a"))
    with pytest.raises(ChatTemplateError, match="all of Unicode's private characters"):
        tokenizer.chat.encode(say(rare + private))


def test_a_message_that_is_nested_too_deeply_is_refused() -> None:
    deep: object = "x"
    for _ in range(5000):
        deep = {"a": deep}
    call = {"id": "1", "type": "function", "function": {"name": "f", "arguments": deep}}
    chat = Conversation(messages=[{"role": "assistant", "content": "", "tool_calls": [call]}])
    for template in (HERMES, CHATML):
        for method in (family_tokenizer(template).chat.encode, family_tokenizer(template).chat.render):
            with pytest.raises(ChatTemplateError, match="nested too deeply"):
                method(chat)


@pytest.mark.parametrize("text", ["<think>", "</think>", "think", "/think", "\n<think>\n"])
@pytest.mark.parametrize("role", ["user", "tool", "system"])
def test_no_message_changes_the_reasoning_state(text: str, role: str) -> None:
    for ending in ("", "<{{ messages[0].content }}>", "{{ messages[0].content | trim }}"):
        tokenizer = family_tokenizer("{# </think> #}{{ tools }}{{ messages[0].content }}" + ending)
        without = Tokenizer(byte_level(), chat_template=tokenizer.chat.template)
        chat = Conversation(messages=[{"role": role, "content": text, "tool_call_id": text}])
        for each in (tokenizer, without):
            assert each.chat.encode(chat).reasoning is ReasoningState.MAY_BEGIN
