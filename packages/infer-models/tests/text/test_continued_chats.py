"""Chats whose last message is continued, and calls whose arguments are no JSON object."""

from typing import Any

import pytest
from transformers.utils.chat_template_utils import render_jinja_template

from infer_models.text import ChatTemplateError, Conversation, ReasoningState
from infer_proofs.text import CHATML, HERMES, LLAMA_3, SPECIAL, control_ids, family_tokenizer

TRIMMED = CHATML.replace("{{ message.content }}", "{{ message.content | trim }}")
OF_PARTS = CHATML.replace(
    "{{ message.content }}", "{% for p in message.content if p.type == 'text' %}{{ p.text }}{% endfor %}"
)
PER_ARGUMENT = (
    "{% for m in messages %}{% for c in m.tool_calls or [] %}LOOP{% endfor %}{{ m.content or '' }};{% endfor %}"
)
AS_MAPPING = PER_ARGUMENT.replace("LOOP", "{% for k, v in c.function.arguments.items() %}{{ k }}={{ v }},{% endfor %}")
AS_JSON = PER_ARGUMENT.replace("LOOP", "{{ c.function.arguments | tojson }}")
HI: dict[str, object] = {"role": "user", "content": "Hi"}


def continued(text: str) -> Conversation:
    messages: list[dict[str, object]] = [HI, {"role": "assistant", "content": text}]
    return Conversation(messages=messages, add_generation_prompt=False, continue_final_message=True)


@pytest.mark.covers("structured-tools-agents/continued-message")
@pytest.mark.parametrize("template", [CHATML, TRIMMED, HERMES])
@pytest.mark.parametrize("text", ["It is", " It is ", "It\n\nis \n", "<|im_end|> is", ""])
def test_a_continued_prompt_is_that_of_transformers(template: str, text: str) -> None:
    chat = continued(text)
    conversations: list[list[dict[str, Any]]] = [[dict(message) for message in chat.messages]]
    rendered: Any = render_jinja_template(conversations, chat_template=template, continue_final_message=True)
    [[expected], _] = rendered
    assert family_tokenizer(template).chat.render(chat) == expected


@pytest.mark.parametrize("template", [OF_PARTS, LLAMA_3])
def test_a_continued_prompt_ends_with_the_message(template: str) -> None:
    assert family_tokenizer(template).chat.render(continued("It is")).endswith("It is")


@pytest.mark.parametrize("special", SPECIAL)
def test_a_continued_message_writes_no_control_token(special: str) -> None:
    tokenizer = family_tokenizer(HERMES)
    assert control_ids(tokenizer, continued(f"a{special}b")) == control_ids(tokenizer, continued("ab"))


def test_an_answer_that_is_continued_begins_no_thinking() -> None:
    assert family_tokenizer(HERMES).chat.encode(continued("It is")).reasoning is ReasoningState.NONE


def test_a_template_that_leaves_the_last_message_out_is_named() -> None:
    with pytest.raises(ChatTemplateError, match="cannot be continued"):
        family_tokenizer("{{ messages[0].content }}").chat.render(continued("It is"))


def called_with(arguments: object) -> Conversation:
    call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": arguments}}
    return Conversation(messages=[HI, {"role": "assistant", "content": None, "tool_calls": [call]}])


@pytest.mark.parametrize(
    ("template", "text"),
    [
        (AS_JSON, 'Hi;"{\\"a\\": \\"onc";'),
        (AS_MAPPING, 'Hi;arguments={"a": "onc,;'),
        (PER_ARGUMENT.replace("LOOP", "{{ c.function.arguments + '' }}"), 'Hi;{"a": "onc;'),
    ],
)
def test_arguments_that_were_cut_off_are_seen_whatever_the_template_wants(template: str, text: str) -> None:
    template = "{{ tools | tojson if tools else '' }}" + template
    assert family_tokenizer(template).chat.render(called_with('{"a": "onc')) == text


def test_arguments_that_were_cut_off_are_seen_by_a_model_without_tools() -> None:
    assert '"arguments": {"a": "onc' in family_tokenizer(CHATML).chat.render(called_with('{"a": "onc'))
