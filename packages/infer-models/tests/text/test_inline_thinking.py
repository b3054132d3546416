"""Thinking inside the content of earlier answers: a template that takes it apart writes control tokens of its own."""

from pathlib import Path
from typing import Any

import pytest
from transformers import AutoTokenizer

from infer_models.text import Conversation, Tokenizer
from infer_proofs.text import MARKERS, byte_level

APART = (
    "{{ tools | tojson if tools }}{% set ns = namespace(last=0) %}{% for m in messages if m.role == 'user' %}"
    "{% set ns.last = messages.index(m) %}{% endfor %}{% for m in messages %}<|im_start|>{{ m.role + '\n' }}"
    "{% if m.role == 'assistant' and '</think>' in m.content %}WHY{{ m.content.split('</think>')[-1].lstrip('\n') }}"
    "{% else %}{{ m.content }}{% endif %}<|im_end|>\n{% endfor %}<|im_start|>assistant\n"
)
WHY = "{% set why = m.content.split('</think>')[0].split('<think>')[-1].STRIP %}"
STYLES = {
    "lines": APART.replace(
        "WHY", WHY + "{% if loop.index0 > ns.last %}<think>\n{{ why }}\n</think>\n\n{% endif %}"
    ).replace("STRIP", "strip('\n')"),
    "closely": APART.replace("WHY", WHY + "<think>{{ why }}</think>").replace("STRIP", "strip()"),
    "always left out": APART.replace("WHY", ""),
    "as it is": "{% for m in messages %}<|im_start|>{{ m.content }}<|im_end|>{% endfor %}{# <think></think> #}",
}
SAID = "<think>\nI must look.\n</think>\n\nLooking."
ASK = {"role": "user", "content": "a"}


def folder_of(template: str, folder: Path) -> Path:
    tokenizer = byte_level()
    tokenizer.add_tokens(list(MARKERS))
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "chat_template.jinja").write_text(template, encoding="utf-8")
    return folder


def say(content: str) -> dict[str, str]:
    return {"role": "assistant", "content": content}


@pytest.mark.parametrize("style", ["lines", "closely", "always left out"])
@pytest.mark.parametrize(
    "chat",
    [
        [ASK, say(SAID), {"role": "tool", "content": "x"}],
        [ASK, say(SAID), ASK],
        [ASK, say(SAID), {"role": "tool", "content": "x"}, say("<think>Again.</think>Then so."), say("No thinking.")],
        [ASK, say("I must look.\n</think>\n\nLooking.")],
    ],
    ids=["loop", "past", "loop of two", "opened by the prompt"],
)
def test_the_ids_are_those_of_transformers(style: str, chat: list[dict[str, str]], tmp_path: Path) -> None:
    theirs: Any = AutoTokenizer.from_pretrained(folder_of(STYLES[style], tmp_path))
    expected = theirs.apply_chat_template(chat, return_dict=False)
    assert Tokenizer.from_folder(tmp_path).chat.encode(Conversation(messages=chat)).token_ids == expected


@pytest.mark.parametrize("style", STYLES)
@pytest.mark.parametrize("content", ["a <think> b", "<think>", "</think><|im_end|>", "<|im_start|>"])
def test_what_others_say_stays_text_beside_it(style: str, content: str, tmp_path: Path) -> None:
    tokenizer = Tokenizer.from_folder(folder_of(STYLES[style], tmp_path))

    def control_ids(text: str) -> list[int]:
        messages = [{"role": "user", "content": text}, say(SAID), {"role": "tool", "content": text}]
        ids = tokenizer.chat.encode(Conversation(messages=messages)).token_ids
        return [token_id for token_id in ids if token_id in range(1, 3) or token_id >= tokenizer.ordinary_vocab_size]

    assert control_ids(content) == control_ids("harmless")


@pytest.mark.parametrize(
    "content", ["<think>", "Use <think> so.", "a</think>b</think>c", "<think>a<|im_end|></think>b", SAID]
)
def test_a_mark_that_a_template_passes_on_stays_text(content: str, tmp_path: Path) -> None:
    tokenizer = Tokenizer.from_folder(folder_of(STYLES["as it is"], tmp_path))
    ids = tokenizer.chat.encode(Conversation(messages=[ASK, say(content)])).token_ids
    assert max(ids) < tokenizer.ordinary_vocab_size
    assert tokenizer.decode(ids) == f"a{content.replace('<|im_end|>', '')}" or "<|im_end|>" in content
