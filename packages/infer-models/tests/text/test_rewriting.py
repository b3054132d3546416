"""Conversations that a chat template refuses are rewritten as little as helps, and say all that they said."""

from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from infer_models.text import ChatTemplateError, Conversation
from infer_proofs.text import family_tokenizer

Message = dict[str, Any]

TOOLS = "{% if tools %}<tools>{{ tools | tojson }}</tools>{% endif %}"
CALLS = "{% for c in m.tool_calls or [] %}CALL {{ c.function.name }}{{ c.function.arguments | tojson }}{% endfor %}"
TURNS = TOOLS + (
    "{% for m in messages %}<|im_start|>{{ m.role }}:{{ m.content }}" + CALLS + "<|im_end|>{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant:{% endif %}"
)


def refusing(condition: str) -> str:
    """A template that refuses a conversation in which a message `m`, after `p`, fulfils `condition`."""
    return (
        "{% for m in messages %}{% set p = messages[loop.index0 - 1] if loop.index0 else {} %}{% if CONDITION %}"
        "{{ raise_exception('refused') }}{% endif %}{% endfor %}"
    ).replace("CONDITION", condition) + TURNS


# In the manner of Mistral's: only the user's turns and answers without calls count.
ALTERNATING = (
    "{% set ns = namespace(user=true) %}{% for m in messages if m.role == 'user' or m.role == 'assistant' "
    "and not m.tool_calls %}{% if (m.role == 'user') != ns.user %}{{ raise_exception('must alternate') }}{% endif %}"
    "{% set ns.user = not ns.user %}{% endfor %}"
)
GEMMA = (
    "{% if messages[0].role == 'system' %}{{ raise_exception('no system role') }}{% endif %}{% for m in messages %}"
    "{% if (m.role == 'user') != (loop.index0 % 2 == 0) %}{{ raise_exception('must alternate') }}{% endif %}"
    "<|im_start|>{{ 'model' if m.role == 'assistant' else m.role }}\n{{ m.content | trim }}<|im_end|>\n{% endfor %}"
)
TEMPLATES = {
    "alternating": ALTERNATING + TURNS,
    "gemma": GEMMA,
    "system first": refusing("m.role == 'system' and not loop.first"),
    "no system": refusing("m.role in ['system', 'developer']"),
    "known roles": refusing("m.role not in ['system', 'user', 'assistant', 'tool']"),
    "no tools' role": refusing("m.role == 'tool'"),
    "no calls": refusing("m.tool_calls"),
    "one call": refusing("m.tool_calls and m.tool_calls | length > 1"),
    "results after calls": refusing("m.role == 'tool' and not (p.tool_calls or p.role == 'tool')"),
    "one result after a call": refusing("m.role == 'tool' and not p.tool_calls"),
    "user first": refusing("loop.first and m.role not in ['user', 'system']"),
    "no user after results": refusing("m.role == 'user' and p.role == 'tool'"),
    "nothing empty": refusing("not m.content and not m.tool_calls"),
    "ends with the user": refusing("loop.last and m.role == 'assistant'"),
    "adds to texts": TURNS.replace("{{ m.content }}", "{{ m.content + '' }}"),
    "goes through texts": TURNS.replace("{{ m.content }}", "{{ m['content'].split('x') | join('x') }}"),
    "arguments as text": TURNS.replace("c.function.arguments | tojson", "'(' + c.function.arguments + ')'"),
    "goes through tools": TURNS.replace(
        "{{ tools | tojson }}", "{{ tools[0].function.description + '.' + tools[0].function.name }}"
    ),
}
TOKENIZERS = {name: family_tokenizer(template) for name, template in TEMPLATES.items()}
TOOL = {"type": "function", "function": {"name": "look"}}


def user(text: str = "u") -> Message:
    return {"role": "user", "content": text}


def system(text: str = "s") -> Message:
    return {"role": "system", "content": text}


def said(text: str = "a") -> Message:
    return {"role": "assistant", "content": text}


def calling(*ids: str, content: str | None = None) -> Message:
    function = {"name": "look", "arguments": {}}
    return {"role": "assistant", "content": content, "tool_calls": [{"id": i, "function": function} for i in ids]}


def result(call_id: str = "1", text: str = "r") -> Message:
    return {"role": "tool", "tool_call_id": call_id, "content": text}


def turns(template: str, *messages: Message, tools: tuple[Message, ...] = ()) -> list[str]:
    chat = Conversation(messages=messages, tools=tools, add_generation_prompt=False)
    text = family_tokenizer(template).chat.render(chat)
    return [turn.strip().removesuffix("<|im_end|>").strip() for turn in text.split("<|im_start|>")[1:]]


@pytest.mark.parametrize(
    ("name", "messages", "expected"),
    [
        ("system first", [system("A"), system("B"), user()], ["system:A\n\nB", "user:u"]),
        ("system first", [user(), said(), system("B"), user("v")], ["user:u", "assistant:a", "user:B", "user:v"]),
        ("no system", [system("A"), user()], ["user:A\n\nu"]),
        ("no system", [system("A")], ["user:A"]),
        ("known roles", [{"role": "developer", "content": "A"}, user()], ["system:A", "user:u"]),
        ("gemma", [system("A"), user(), user("v")], ["user\nA\n\nu\n\nv"]),
        ("gemma", [said(), user()], ["user", "model\na", "user\nu"]),
        ("alternating", [user(), user("v"), said(), said("b")], ["user:u\n\nv", "assistant:a\n\nb"]),
        ("alternating", [user(), calling("1"), result(), user("v")],
         ["user:u", "assistant:CALL look{}", "tool:r", "assistant:", "user:v"]),
        ("no user after results", [user(), calling("1"), result(), user("v")],
         ["user:u", "assistant:CALL look{}", "tool:r", "assistant:", "user:v"]),
        ("one call", [user(), calling("1", "2", content="So:"), result("2", "b"), result("1", "a"), user("v")],
         ["user:u", "assistant:So:CALL look{}", "tool:a", "assistant:CALL look{}", "tool:b", "user:v"]),
        ("results after calls", [user(), result()], ["user:u", "user:Result of the tool: r"]),
        ("no tools' role", [user(), calling("1"), result()],
         ["user:u", 'assistant:{"name": "look", "arguments": {}}', "user:Result of look: r"]),
        ("user first", [said(), user()], ["user:", "assistant:a", "user:u"]),
        ("adds to texts", [user(), calling("1"), result()], ["user:u", "assistant:CALL look{}", "tool:r"]),
        ("ends with the user", [user(), said()], ["user:u", "assistant:a", "user:"]),
    ],
)  # fmt: skip
def test_the_least_change_is_made(name: str, messages: list[Message], expected: list[str]) -> None:
    assert turns(TEMPLATES[name], *messages) == expected


@pytest.mark.parametrize("name", ["system first", "no system", "alternating", "one call", "adds to texts"])
def test_what_a_template_takes_is_not_changed(name: str) -> None:
    messages = [user(), calling("1", content=""), result(), said(), user("v")]
    assert turns(TEMPLATES[name], *messages) == turns(TURNS, *messages)


def test_words_beside_a_result_are_put_into_it_where_no_empty_answer_may_be() -> None:
    strict = refusing("(m.role == 'user' and p.role == 'tool') or not (m.content or m.tool_calls)")
    assert turns(strict, user(), calling("1"), result(), user("v"))[-1] == "tool:r\n\nv"


def test_tools_without_description_are_completed_where_a_template_needs_it() -> None:
    assert turns(TEMPLATES["goes through tools"], user(), tools=(TOOL,)) == ["user:u"]


def test_tools_are_described_in_the_users_turn_where_a_template_leaves_out_system_messages() -> None:
    [turn] = turns(
        "{% for m in messages if m.role == 'user' %}<|im_start|>{{ m.content }}{% endfor %}", user(), tools=(TOOL,)
    )
    assert "look" in turn
    assert turn.endswith("u")


@pytest.mark.parametrize(("role", "there"), [("developer", "system"), ("function", "tool")])
def test_a_message_that_a_template_leaves_out_silently_has_the_older_name(role: str, there: str) -> None:
    known = TURNS.replace("in messages", "in messages if m.role in ['system', 'user', 'assistant', 'tool']")
    assert turns(known, user(), {"role": role, "content": "B"})[-1] == f"{there}:B"


def test_system_messages_are_lost_where_a_template_leaves_out_all_of_them_and_that_is_said() -> None:
    tokenizer = family_tokenizer(TURNS.replace("in messages", "in messages if m.role == 'user'"))
    assert "A" not in tokenizer.render_chat([system("A"), user()])
    assert tokenizer.chat.left_out.startswith("system messages (lost), ")


FIRST = (
    "{% set has = messages[0].role == 'system' %}{{ messages[0].content if has }}"
    "{% set rest = messages[1:] if has else messages %}" + TURNS.replace("in messages", "in rest if m.role != 'system'")
)
LAST = "{% for m in messages if m.role == 'system' %}{{ m.content if loop.last }}{% endfor %}" + TURNS.replace(
    "in messages", "in messages if m.role != 'system'"
)


@pytest.mark.parametrize(
    ("template", "messages", "expected"),
    [
        (FIRST, [system("A"), system("B"), user()], "A\n\nB<|im_start|>user:u<|im_end|>"),
        (FIRST, [system("A"), user(), said(), system("B")], "assistant:a<|im_end|><|im_start|>user:B<|im_end|>"),
        (FIRST, [user(), system("B")], "<|im_start|>user:u<|im_end|><|im_start|>user:B<|im_end|>"),
        (LAST, [system("A"), system("B"), user()], "A\n\nB<|im_start|>user:u<|im_end|>"),
        (LAST, [system("A"), user(), system("B")], "A<|im_start|>user:u<|im_end|><|im_start|>user:B<|im_end|>"),
        (LAST, [user(), system("B")], "B<|im_start|>user:u<|im_end|>"),
    ],
)  # fmt: skip
def test_system_messages_that_a_template_leaves_out_silently_are_in_the_prompt(
    template: str, messages: list[Message], expected: str
) -> None:
    text = family_tokenizer(template).render_chat(messages, add_generation_prompt=False)
    assert text.endswith(expected)


HARMONY = (
    "{% for m in messages %}{% if m.tool_calls %}"
    "{% if m.content and m.thinking %}{{ raise_exception('both') }}{% endif %}"
    "<|im_start|>analysis:{{ m.content or m.thinking }}<|im_end|>"
    "<|im_start|>call:{{ m.tool_calls[0].function.name }}<|im_end|>"
    "{% elif m.role == 'tool' %}<|im_start|>functions:{{ m.content }}<|im_end|>"
    "{% else %}<|im_start|>{{ m.role }}:{{ m.content }}<|im_end|>{% endif %}{% endfor %}{{ tools | tojson }}"
)


def test_words_beside_thinking_and_a_call_become_thinking_where_a_template_refuses_all_three() -> None:
    answer = {**calling("1"), "content": "I look.", "reasoning_content": "A tool."}
    text = family_tokenizer(HARMONY).render_chat([user(), answer, result()], add_generation_prompt=False)
    assert "analysis:A tool.\n\nI look.<|im_end|><|im_start|>call:" in text
    assert "<|im_start|>functions:" in text
    alone = family_tokenizer(HARMONY).render_chat([user(), {**answer, "content": ""}, result()])
    assert "analysis:A tool.<|im_end|>" in alone


def test_the_error_is_the_templates_own_refusal() -> None:
    never = family_tokenizer(refusing("'no' in m.content"))
    with pytest.raises(ChatTemplateError, match="cannot render these messages: refused"):
        never.chat.encode(Conversation(messages=[system(), system(), user("no"), calling("1", "2"), result()]))


@pytest.mark.parametrize("content", ["It says <|im_end|> there.", "<|im_start|>"])
def test_a_template_that_refuses_its_control_tokens_does_not_see_them(content: str) -> None:
    tokenizer = family_tokenizer(refusing("'<|im_' in m.content"))
    ids = tokenizer.chat.encode(Conversation(messages=[user(content), user("v")])).token_ids
    harmless = tokenizer.chat.encode(Conversation(messages=[user("x"), user("v")])).token_ids
    assert sum(token_id in tokenizer.special_ids for token_id in ids) == sum(
        token_id in tokenizer.special_ids for token_id in harmless
    )
    assert content in tokenizer.decode(ids, skip_special_tokens=False)


ROLES = st.sampled_from(["system", "developer", "user", "assistant", "null", "calls", "tool", "other tool"])


def conversation(roles: list[str]) -> list[Message]:
    messages: list[Message] = []
    for index, role in enumerate(roles):
        word = f"w{index:02}"
        if role == "calls":
            messages.append(calling(f"{index}a", f"{index}b", content=word))
        elif role == "null":
            messages.append({"role": "assistant", "content": None, "tool_calls": calling(f"{index}a")["tool_calls"]})
        elif "tool" in role:
            messages.append(result(f"{index - 1}a" if role == "tool" else "nobody's", word))
        else:
            messages.append({"role": role, "content": word})
    return messages


def words(text: str) -> list[str]:
    found = [text[i : i + 3] for i in range(len(text)) if text[i] == "w" and text[i + 1 : i + 3].isdigit()]
    return sorted(found)


@pytest.mark.parametrize("name", [name for name in TEMPLATES if name != "nothing empty"])
@given(roles=st.lists(ROLES, min_size=1, max_size=7), has_tools=st.booleans())
@example(roles=["user", "calls", "tool", "tool", "user", "system", "user"], has_tools=True)
@example(roles=["tool", "assistant", "assistant", "system", "calls", "system"], has_tools=True)
def test_no_conversation_is_refused_and_no_word_is_lost(name: str, roles: list[str], has_tools: bool) -> None:  # noqa: FBT001 - drawn
    messages = conversation(roles)
    chat = Conversation(messages=messages, tools=[TOOL] if has_tools else [])
    text = TOKENIZERS[name].chat.render(chat)
    assert words(text) == sorted(each["content"] for each in messages if each["content"])
    assert TOKENIZERS[name].chat.encode(chat).token_ids


def test_broken_arguments_become_text_where_a_template_knows_neither_calls_nor_two_turns_of_one_role() -> None:
    call = {"id": "c", "type": "function", "function": {"name": "look", "arguments": '{"a": '}}
    messages: list[Message] = [
        {"role": "user", "content": "U"},
        {"role": "assistant", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c", "content": "RESULT"},
        {"role": "user", "content": "V"},
    ]
    tool = {"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}
    text = family_tokenizer(GEMMA).chat.render(Conversation(messages=messages, tools=[tool]))
    assert all(each in text for each in ("RESULT", "look", '{"a": ', "V"))
