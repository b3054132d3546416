"""`CHAT_STYLES`: chat templates in the style of each family, in words of our own, for tiny checkpoints."""

import json
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

from infer_models.families.tiny_family import ChatStyle
from infer_proofs.models.tiny_families import TINY_FAMILIES
from infer_proofs.models.tokenizer import save_tiny_tokenizer

CHAT_STYLES: Mapping[str, ChatStyle] = MappingProxyType({name: tiny.chat for name, tiny in TINY_FAMILIES.items()})
"""The styles, by the keys of `TINY_FAMILIES`."""


def save_chat_style(family: str, folder: Path, *, vocab_size: int = 320) -> None:
    """Save a tokenizer with the family's control tokens and chat template; for wrappers, a processor's files too.

    Args:
        family: a key of `CHAT_STYLES`.
        folder: made if it is not there.
        vocab_size: vocabulary of the tokenizer, with its control tokens.
    """
    style = CHAT_STYLES[family]
    is_in_config = style.file == "tokenizer_config.json"
    save_tiny_tokenizer(
        folder,
        vocab_size=vocab_size,
        chat_template=style.template if is_in_config else None,
        control_tokens=style.control_tokens,
    )
    if style.file == "chat_template.json":
        _write_json(folder / style.file, {"chat_template": style.template})
    elif not is_in_config:
        (folder / style.file).write_text(style.template, encoding="utf-8")
    if TINY_FAMILIES[family].wrapper is not None:
        _write_json(folder / "processor_config.json", {"processor_class": "TinyProcessor", "image_seq_length": 4})
        _write_json(folder / "preprocessor_config.json", {"image_processor_type": "TinyImageProcessor", "size": 28})


def _write_json(path: Path, fields: dict[str, object]) -> None:
    path.write_text(json.dumps(fields), encoding="utf-8")
