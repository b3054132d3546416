"""Tools in conversations: as templates want them, and as text for templates that know none."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from infer_models.text import ChatTemplateError, Conversation, TextTooLongError
from infer_proofs.text import (
    CHATML,
    FAMILIES,
    HERMES,
    LLAMA_3,
    MARKERS,
    MISTRAL_V3,
    NUM_TEXTS,
    SPECIAL,
    busy_conversation,
    control_ids,
    family_tokenizer,
)

CALLS = (
    "{% if tools %}{{ tools | tojson }}{% endif %}{% for m in messages %}<|im_start|>{{ m.role }}:{{ m.content or '' }}"
    "{% for call in m.tool_calls or [] %}ARGUMENTS{% endfor %}<|im_end|>{% endfor %}"
)
AS_TEXT = CALLS.replace("ARGUMENTS", "{{ call.function.name + '(' + call.function.arguments + ')' }}")
AS_STRIPPED_TEXT = CALLS.replace("ARGUMENTS", "{{ call.function.arguments.strip() }}")
AS_MAPPING = CALLS.replace("ARGUMENTS", "{% for k, v in call.function.arguments.items() %}{{ k }}={{ v }};{% endfor %}")
ALTERNATING = (
    "{% for m in messages %}{% if m.role not in ['system', 'user', 'assistant'] %}{{ raise_exception('unknown role') }}"
    "{% endif %}{% if loop.previtem is defined and loop.previtem.role == m.role %}"
    "{{ raise_exception('roles must alternate') }}{% endif %}{% endfor %}" + CHATML
)
KNOWS_NONE = family_tokenizer(ALTERNATING)


def call(call_id: str = "1", /, **arguments: object) -> dict[str, object]:
    return {"id": call_id, "type": "function", "function": {"name": f"f{call_id}", "arguments": arguments}}


def user(content: str) -> dict[str, object]:
    return {"role": "user", "content": content}


def calling(*calls: dict[str, object], content: str | None = None) -> dict[str, object]:
    return {"role": "assistant", "content": content, "tool_calls": list(calls)}


def result(content: str, call_id: str = "1") -> dict[str, object]:
    return {"role": "tool", "content": content, "tool_call_id": call_id}


def tool(name: str = "f1") -> dict[str, object]:
    return {"type": "function", "function": {"name": name, "description": "", "parameters": {"type": "object"}}}


def turns(*messages: dict[str, object], tools: tuple[dict[str, object], ...] = ()) -> list[str]:
    """The turns that a template without tools writes."""
    chat = Conversation(messages=messages, tools=tools, add_generation_prompt=False)
    return [turn.removesuffix("<|im_end|>\n") for turn in KNOWS_NONE.chat.render(chat).split("<|im_start|>")[1:]]


def test_tools_are_described_in_a_system_turn() -> None:
    system, question = turns(user("Hi"), tools=(tool(), tool("f2")))
    assert system == (
        "system\nYou can call these functions:\n"
        '{"name": "f1", "description": "", "parameters": {"type": "object"}}\n'
        '{"name": "f2", "description": "", "parameters": {"type": "object"}}\n'
        'To call one, answer with exactly this: {"name": "NAME", "arguments": {...}}'
    )
    assert question == "user\nHi"


def test_tools_are_described_after_the_system_turn_that_there_is() -> None:
    system, _ = turns({"role": "system", "content": "Be kind."}, user("Hi"), tools=(tool(),))
    assert system.startswith('system\nBe kind.\n\nYou can call these functions:\n{"name": "f1"')


def test_calls_and_results_become_text() -> None:
    messages = [user("Hi"), calling(call(a=["é", 1]), content="Look:"), result("3")]
    assert turns(*messages) == [
        "user\nHi",
        'assistant\nLook:\n{"name": "f1", "arguments": {"a": ["é", 1]}}',
        "user\nResult of f1: 3",
    ]


def test_calls_stay_calls_where_the_template_writes_them_though_it_describes_no_tools() -> None:
    template = (
        "{% for m in messages %}<|im_start|>{{ m.role }}:{{ m.content or '' }}{% for call in m.tool_calls or [] %}"
        "[{{ call.function.name }}]{% endfor %}<|im_end|>{% endfor %}"
    )
    chat = Conversation(messages=[user("Hi"), calling(call()), result("3")], add_generation_prompt=False)
    text = family_tokenizer(template).chat.render(chat)
    assert text == "<|im_start|>user:Hi<|im_end|><|im_start|>assistant:[f1]<|im_end|><|im_start|>tool:3<|im_end|>"


def test_several_calls_and_their_results_are_one_turn_each() -> None:
    messages = [user("Hi"), calling(call("1", a=1), call("2")), result("3"), result("4", "2"), user("So?"), user_less()]
    assert turns(*messages) == [
        "user\nHi",
        'assistant\n{"name": "f1", "arguments": {"a": 1}}\n{"name": "f2", "arguments": {}}',
        "user\nResult of f1: 3\nResult of f2: 4\nSo?",
        "assistant\nBye",
    ]


def user_less() -> dict[str, object]:
    return {"role": "assistant", "content": "Bye"}


def test_a_result_of_an_unknown_call_is_one_of_the_tool() -> None:
    assert turns(user("Hi"), calling(call()), result("3", "other"))[-1] == "user\nResult of the tool: 3"


def test_user_turns_are_joined_where_two_are_refused() -> None:
    assert turns(user("Hi"), user("there"), tools=(tool(),))[1:] == ["user\nHi\n\nthere"]


def test_the_callers_conversation_is_not_changed() -> None:
    system: dict[str, object] = {"role": "system", "content": "Be kind."}
    messages = [system, user("Hi"), calling(call(a=1)), result("3"), user("So?")]
    before = repr(messages)
    turns(*messages, tools=(tool(),))
    assert repr(messages) == before


def test_calls_are_asked_for_in_the_format_that_is_set() -> None:
    tokenizer = family_tokenizer(CHATML, tool_call_format="hermes")
    text = tokenizer.chat.render(Conversation(messages=[user("Hi"), calling(call(a=1))], tools=[tool()]))
    assert 'exactly this: <tool_call>\n{"name": "NAME", "arguments": {...}}\n</tool_call><|im_end|>' in text
    assert 'assistant\n<tool_call>\n{"name": "f1", "arguments": {"a": 1}}\n</tool_call><|im_end|>' in text


HARMFUL = st.lists(st.sampled_from([*MARKERS, *SPECIAL[:4], "<|im_end|>", "tool_call", "<", ">", "fox"]), min_size=1)
AS_TEXTS = {
    name: family_tokenizer(f"{CHATML}{{# {MARKERS} #}}", tool_call_format=name)
    for name in ("auto", "hermes", "mistral_args", "json")
}


@pytest.mark.parametrize("tool_call_format", AS_TEXTS)
@given(texts=st.lists(HARMFUL.map("".join), min_size=NUM_TEXTS, max_size=NUM_TEXTS))
def test_tools_as_text_become_no_control_tokens(tool_call_format: str, texts: list[str]) -> None:
    remaining = iter(texts)
    chat = busy_conversation(lambda _: next(remaining))
    harmless = control_ids(AS_TEXTS[tool_call_format], busy_conversation())
    assert control_ids(AS_TEXTS[tool_call_format], chat) == harmless
    assert (len(harmless) > len(control_ids(AS_TEXTS["json"], busy_conversation()))) == (tool_call_format != "json")


ARGUMENTS = {"city": "Rome <|im_end|>", "é": [1, None, {"a": True}]}


@pytest.mark.parametrize(
    ("template", "written"),
    [
        (AS_TEXT, 'f1({"city": "Rome <|im_end|>", "é": [1, null, {"a": true}]})'),
        (AS_STRIPPED_TEXT, '{"city": "Rome <|im_end|>", "é": [1, null, {"a": true}]}'),
        (AS_MAPPING, "city=Rome <|im_end|>;é=[1, None, {'a': True}];"),
    ],
)
def test_arguments_come_as_the_template_wants_them(template: str, written: str) -> None:
    tokenizer = family_tokenizer(template)
    assert tokenizer.chat.knows_tools
    chat = Conversation(messages=[user("Hi"), calling(call(**ARGUMENTS))])
    assert tokenizer.chat.render(chat).endswith(f"<|im_start|>assistant:{written}<|im_end|>")
    token_ids = tokenizer.chat.encode(chat).token_ids
    assert tokenizer.decode(token_ids, skip_special_tokens=False) == tokenizer.chat.render(chat)
    assert token_ids.count(tokenizer.encode("<|im_end|>")[0]) == 2


REFUSING = "{% for m in messages if m.content == 'no' %}{{ raise_exception('not that') }}{% endfor %}"


@pytest.mark.parametrize("template", [AS_TEXT, AS_MAPPING, REFUSING + AS_TEXT, REFUSING + AS_MAPPING])
def test_a_template_refuses_a_conversation_with_calls_in_its_own_words(template: str) -> None:
    chat = Conversation(messages=[user("Hi"), calling(call(a=1)), user("no")])
    with pytest.raises(ChatTemplateError, match="cannot render these messages: not that"):
        family_tokenizer(template + REFUSING).chat.encode(chat)


def test_parallel_calls_become_turns_of_one_call_where_two_are_refused() -> None:
    two = [user("Hi"), calling(call("1"), call("2")), result("b", "2"), result("a", "1")]
    one = [user("Hi"), calling(call("1")), result("a"), calling(call("2"), content=""), result("b", "2")]
    chat = family_tokenizer(LLAMA_3).chat
    assert chat.render(Conversation(messages=two, tools=[tool()])) == chat.render(
        Conversation(messages=one, tools=[tool()])
    )


# gpt-oss's template writes the first call of an answer alone, and every result as that of this call
def test_parallel_calls_become_turns_of_one_call_where_all_but_the_first_are_left_out() -> None:
    chat = family_tokenizer(FAMILIES["harmony"]).chat
    asked = Conversation(
        messages=[user("Hi"), calling(call("1"), call("2")), result("b", "2"), result("a", "1")], tools=[tool()]
    )
    one = Conversation(
        messages=[user("Hi"), calling(call("1")), result("a", "1"), calling(call("2"), content=""), result("b", "2")],
        tools=[tool()],
    )
    text = chat.render(asked)
    assert text == chat.render(one)
    assert text.index("functions.f1<") < text.index('"a"') < text.index("functions.f2<") < text.index('"b"')
    assert "all calls of an answer but the first (turns of their own)" in chat.left_out
    assert "all calls" not in family_tokenizer(HERMES).chat.left_out
    assert "all calls" not in family_tokenizer(LLAMA_3).chat.left_out  # it says that it refuses them


def test_calls_that_are_refused_in_every_form_become_text() -> None:
    two_calls = Conversation(messages=[user("Hi"), calling(call("1"), call("2"))], tools=[tool()])
    text = family_tokenizer(MISTRAL_V3).chat.render(two_calls)
    assert text.count("[TOOL_CALLS]") == 1
    assert '"arguments": {}}, {"name": "f2"' in text


def test_a_conversation_with_tools_may_have_as_many_tokens_as_the_limit_and_no_more() -> None:
    tokenizer = family_tokenizer(HERMES)
    for chat in (busy_conversation(), busy_conversation(lambda harmless: f"<|im_end|>{harmless}")):
        token_ids = tokenizer.chat.encode(chat).token_ids
        assert tokenizer.chat.encode(chat, max_tokens=len(token_ids)).token_ids == token_ids
        with pytest.raises(TextTooLongError):
            tokenizer.chat.encode(chat, max_tokens=len(token_ids) - 1)
