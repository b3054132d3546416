"""Chats: rendered as `transformers` renders them, and no message ever speaks in the template's name."""

from pathlib import Path

import pytest
import tokenizers
from hypothesis import given
from hypothesis import strategies as st
from transformers import PreTrainedTokenizerFast

from infer_models.text import ChatTemplate, ChatTemplateError, ChatTemplateMissingError, Tokenizer
from infer_proofs.text import CHATML, byte_level, chat_tokenizer, save_tokenizer

BOS, START, END = 0, 1, 2
TRIMMING = CHATML.replace("message.content", "message.content | trim")
BARE = "{{ bos_token }}{% for m in messages %}{{ m.name }}{{ m.content }}|>{% endfor %}<|im_start|>"
PARTS = (
    "{% for m in messages %}{{ m.role | upper }}: "
    "{% for part in m.content | selectattr('type', 'equalto', 'image') %}<image>{% endfor %}"
    "{% for part in m.content | selectattr('type', 'equalto', 'text') %}{{ part.text }} {% endfor %}{% endfor %}"
)
PIECES = ["<|im_end|>", "<|im_", "end|>", "<|bos|>", "<", "|", ">", "im_start", " ", "\n", "fox", "é", "\U000f0000"]
CONTENTS = st.one_of(st.text(), st.lists(st.sampled_from(PIECES)).map("".join))


def say(content: str, *, role: str = "user") -> list[dict[str, str]]:
    return [{"role": role, "content": content}]


def specials(tokenizer: Tokenizer, token_ids: list[int]) -> list[int]:
    return [token_id for token_id in token_ids if token_id in tokenizer.special_ids]


def test_a_chat_ends_where_the_answer_begins() -> None:
    text = chat_tokenizer().render_chat(say("Hello"))
    assert text == "<|im_start|>user\nHello<|im_end|>\n<|im_start|>assistant\n"
    assert chat_tokenizer().render_chat(say("Hello"), add_generation_prompt=False).endswith("<|im_end|>\n")


@pytest.mark.covers("models/chat-template-sandbox")
@pytest.mark.parametrize(
    "template", [CHATML, TRIMMING, BARE.replace("{{ m.name }}", "")], ids=["chatml", "trim", "bare"]
)
@pytest.mark.parametrize("content", ["Hello", "  two  spaces ", "naïve 日本", "a\n\nb", "", "<b>|bold|</b>"])
def test_ids_are_those_of_transformers(tmp_path: Path, template: str, content: str) -> None:
    save_tokenizer(tmp_path, config={"bos_token": "<|bos|>", "eos_token": "<|im_end|>", "chat_template": template})
    theirs = PreTrainedTokenizerFast.from_pretrained(tmp_path)
    messages = [*say("Be brief.", role="system"), *say(content)]
    expected = theirs.apply_chat_template(
        messages, chat_template=template, add_generation_prompt=True, return_dict=False
    )
    assert Tokenizer.from_folder(tmp_path).encode_chat(messages) == expected


@pytest.mark.covers("models/chat-template-sandbox")
@pytest.mark.parametrize("content", ["Hello", "  two  spaces ", "", "[{'type': 'image'}]", "71830"])
def test_a_template_that_looks_for_parts_gets_parts(tmp_path: Path, content: str) -> None:
    save_tokenizer(tmp_path, config={"chat_template": PARTS})
    theirs = PreTrainedTokenizerFast.from_pretrained(tmp_path)
    messages = [*say("Be brief.", role="system"), *say(content)]
    in_parts = [{**each, "content": [{"type": "text", "text": each["content"]}]} for each in messages]
    expected = theirs.apply_chat_template(in_parts, return_dict=False)
    tokenizer = Tokenizer.from_folder(tmp_path)
    assert tokenizer.render_chat(messages) == f"SYSTEM: Be brief. USER: {content} "
    assert tokenizer.encode_chat(messages) == expected


@pytest.mark.parametrize(
    "template",
    [
        CHATML,
        "{{ messages[0].content if messages[0].content is string else messages[0].content[0].text }}",
        "{{ messages[0].content | upper }}",
        "{{ raise_exception('no') if messages | length < 2 else messages[0].content }}",
        "one text for all",
    ],
    ids=["text", "both", "changed", "refused", "neither"],
)
def test_a_template_that_is_not_sure_to_look_for_parts_gets_text(template: str) -> None:
    assert not ChatTemplate(template, variables={}).takes_parts


@pytest.mark.covers("http/no-special-tokens")
@given(content=CONTENTS, name=CONTENTS)
@pytest.mark.parametrize("template", [CHATML, TRIMMING, BARE, PARTS], ids=["chatml", "trim", "bare", "parts"])
def test_messages_never_become_special_tokens(template: str, content: str, name: str) -> None:
    tokenizer = chat_tokenizer(template)
    harmless = tokenizer.encode_chat([{"role": "user", "content": "a", "name": "b"}])
    token_ids = tokenizer.encode_chat([{"role": "user", "content": content, "name": name}])
    assert specials(tokenizer, token_ids) == specials(tokenizer, harmless)


@given(content=CONTENTS)
def test_messages_reach_the_model_unchanged(content: str) -> None:
    tokenizer = chat_tokenizer()
    token_ids = tokenizer.encode_chat(say(content))
    text = tokenizer.decode(token_ids, skip_special_tokens=False)
    assert text == f"<|im_start|>user\n{content}<|im_end|>\n<|im_start|>assistant\n"


@pytest.mark.covers("http/no-special-tokens")
def test_a_special_token_across_message_and_template_is_text() -> None:
    tokenizer = chat_tokenizer("{% for m in messages %}{{ m.content }}|>{% endfor %}<|im_end|>")
    assert specials(tokenizer, tokenizer.encode_chat(say("<|im_end"))) == [END]


def test_a_special_token_across_template_and_message_is_text() -> None:
    tokenizer = chat_tokenizer("{% for m in messages %}<|{{ m.content }}{% endfor %}<|im_end|>")
    assert specials(tokenizer, tokenizer.encode_chat(say("im_end|>"))) == [END]


def test_a_role_may_be_part_of_the_templates_special_token() -> None:
    tokenizer = chat_tokenizer("{% for m in messages %}<|{{ m.role }}|>{{ m.content }}{% endfor %}")
    assert specials(tokenizer, tokenizer.encode_chat(say("<|im_end|>", role="im_start"))) == [START]


def test_a_role_that_is_no_name_is_refused() -> None:
    with pytest.raises(ChatTemplateError, match=r"`role` is 'user<\|im_end\|>'"):
        chat_tokenizer().encode_chat(say("Hi", role="user<|im_end|>"))


def test_a_template_that_writes_the_beginning_gets_no_second_one() -> None:
    tokenizer = chat_tokenizer("{{ bos_token }}" + CHATML)
    assert tokenizer.encode_chat(say("Hello")).count(BOS) == 1


def test_special_tokens_swallow_the_white_space_that_they_are_declared_to() -> None:
    raw = byte_level()
    raw.add_special_tokens([tokenizers.AddedToken("<|sep|>", lstrip=True, rstrip=True)])
    template = ChatTemplate("{% for m in messages %} <|sep|> {{ m.content }}{% endfor %}", variables={})
    tokenizer = Tokenizer(raw, chat_template=template)
    assert tokenizer.decode(tokenizer.encode_chat(say("<|sep|>")), skip_special_tokens=False) == "<|sep|><|sep|>"


def test_a_special_token_that_only_the_tokenizer_recognizes_is_text() -> None:
    raw = byte_level()
    raw.normalizer = tokenizers.normalizers.Lowercase()
    raw.add_special_tokens([tokenizers.AddedToken("<|halt|>", normalized=True)])
    tokenizer = Tokenizer(raw, chat_template=ChatTemplate(CHATML, variables={}))
    assert specials(tokenizer, tokenizer.encode("<|HALT|>")) == [tokenizer.vocab_size - 1]
    assert specials(tokenizer, tokenizer.encode_chat(say("<|HALT|>"))) == [START, END, START]


def test_no_template_is_an_error_of_its_own() -> None:
    with pytest.raises(ChatTemplateMissingError, match="no chat template"):
        Tokenizer(byte_level()).encode_chat(say("Hello"))


def test_a_template_can_refuse_messages() -> None:
    tokenizer = chat_tokenizer("{{ raise_exception('roles must alternate') }}")
    with pytest.raises(ChatTemplateError, match="roles must alternate"):
        tokenizer.render_chat(say("Hello"))


@pytest.mark.parametrize(
    "template",
    [
        "{{ messages[9].content }}",
        "{{ 1 + messages }}",
        "{{ undefined.x }}",
        "{{ 1 // 0 }}",
        "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}",
    ],
)
def test_a_template_that_fails_on_messages_is_an_error_of_theirs(template: str) -> None:
    with pytest.raises(ChatTemplateError, match="cannot render these messages"):
        chat_tokenizer(template).render_chat(say("Hello"))


@pytest.mark.covers("models/chat-template-sandbox")
@pytest.mark.parametrize(
    "template",
    [
        "{{ messages.append(1) }}",
        "{{ ''.__class__.__mro__ }}",
        "{{ cycler.__init__.__globals__ }}",
        "{% include 'x' %}",
    ],
)
def test_a_template_cannot_leave_its_sandbox(template: str) -> None:
    with pytest.raises(ChatTemplateError):
        chat_tokenizer(template).render_chat(say("Hello"))


def test_a_template_that_writes_without_end_is_stopped() -> None:
    endless = "{% for i in range(99999) %}{% for j in range(99999) %}x{% endfor %}{% endfor %}"
    template = ChatTemplate(endless, variables={}, max_characters=1000)
    with pytest.raises(ChatTemplateError, match="makes more than 1000 characters of these messages; send fewer"):
        template.render(say("Hello"))


def test_a_template_may_write_up_to_its_limit() -> None:
    template = ChatTemplate("{{ messages[0].content }}", variables={}, max_characters=5)
    assert template.render(say("Hello")) == "Hello"


def test_templates_have_the_functions_that_they_expect() -> None:
    template = "{% generation %}{{ strftime_now('%Y') | length }} {{ messages | tojson }}{% endgeneration %}"
    assert chat_tokenizer(template).render_chat(say("<é>")) == '4 [{"role": "user", "content": "<é>"}]'


def test_a_message_of_no_json_type_is_refused() -> None:
    with pytest.raises(ChatTemplateError, match="a message holds a `object`"):
        chat_tokenizer().render_chat([{"role": "user", "content": object()}])


def test_thinking_is_a_part_of_the_content_where_the_template_looks_for_it_there() -> None:
    template = ChatTemplate(
        "{% for m in messages %}<{{ m.role }}>{% if m.content is string %}{{ m.content }}{% else %}"
        "{% for part in m.content %}{% if part.type == 'thinking' %}[THINK]{{ part.thinking }}[/THINK]"
        "{% else %}{{ part.text }}{% endif %}{% endfor %}{% endif %}{% endfor %}",
        variables={},
    )
    asked = {"role": "user", "content": "Hi"}
    answers = [{"role": "assistant", "content": content, "reasoning": "Hm."} for content in ("Yes.", "")]
    texts = [template.render([asked, answer, asked]) for answer in answers]
    assert texts == [f"<user>Hi<assistant>[THINK]Hm.[/THINK]{said}<user>Hi" for said in ("Yes.", "")]
    assert template.render([asked, {"role": "assistant", "content": "Yes."}]) == "<user>Hi<assistant>Yes."
