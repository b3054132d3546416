"""The chat templates of tiny checkpoints, one in the style of each family: prompts are those of `transformers`."""

import json
from pathlib import Path
from typing import Any

import pytest
from transformers import PreTrainedTokenizerFast

from infer_models.text import Tokenizer
from infer_proofs.models import CHAT_STYLES, TINY_FAMILIES, save_chat_style

QUESTION: dict[str, Any] = {"role": "user", "content": "Where is <eos> Rome?"}
CONVERSATION = [{"role": "system", "content": "Be brief."}, QUESTION, {"role": "assistant", "content": "é"}, QUESTION]


def in_parts(message: dict[str, Any]) -> dict[str, Any]:
    return {**message, "content": [{"type": "text", "text": message["content"]}]}


def prompt_by_transformers(family: str, folder: Path, messages: list[dict[str, Any]]) -> list[int]:
    """Return what `transformers` makes of the files; a processor reads `chat_template.json`, and wants parts."""
    tokenizer, template = PreTrainedTokenizerFast.from_pretrained(folder), None
    if CHAT_STYLES[family].file == "chat_template.json":
        template = json.loads((folder / "chat_template.json").read_text())["chat_template"]
        messages = [in_parts(message) for message in messages]
    ids: list[int] = tokenizer.apply_chat_template(
        messages, chat_template=template, add_generation_prompt=True, return_dict=False
    )
    return ids


def test_every_tiny_family_has_a_style() -> None:
    assert set(CHAT_STYLES) == set(TINY_FAMILIES)


@pytest.mark.covers("models/chat-template-sandbox")
@pytest.mark.parametrize("family", CHAT_STYLES)
def test_prompts_of_a_family_are_those_of_transformers(family: str, tmp_path: Path) -> None:
    save_chat_style(family, tmp_path)
    tokenizer = Tokenizer.from_folder(tmp_path)
    assert (tmp_path / CHAT_STYLES[family].file).is_file()
    assert tokenizer.vocab_size == 320
    for messages in ([QUESTION], CONVERSATION):
        harmless = [{**message, "content": message["content"].replace("<eos> ", "")} for message in messages]
        assert tokenizer.encode_chat(harmless) == prompt_by_transformers(family, tmp_path, harmless)
        spelled = tokenizer.encode_chat(messages)
        controls = [token_id for token_id in spelled if token_id in tokenizer.special_ids]
        assert controls == [each for each in tokenizer.encode_chat(harmless) if each in tokenizer.special_ids]


@pytest.mark.parametrize("family", CHAT_STYLES)
def test_control_tokens_of_a_family_are_one_token_each(family: str, tmp_path: Path) -> None:
    save_chat_style(family, tmp_path)
    tokenizer = Tokenizer.from_folder(tmp_path)
    ids = [tokenizer.encode(text, add_special_tokens=False) for text in CHAT_STYLES[family].control_tokens]
    assert [each for [each] in ids] == list(range(320 - len(ids), 320))
