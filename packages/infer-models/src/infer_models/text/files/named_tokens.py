"""Special tokens by name, such as `bos_token` and `image_token`: from the files, or else from their classes.

A name is in `tokenizer_config.json`, or in `special_tokens_map.json` beside a configuration of an older kind.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from infer_models.asked_fields import AskedFields
from infer_models.text.files.reading import read_object

_STANDARD_NAMES = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")

_END = "<|endoftext|>"
_QWEN = {"eos_token": _END, "unk_token": _END, "pad_token": _END}
_GPT_2 = {"bos_token": _END, "eos_token": _END, "unk_token": _END}
_LLAMA = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}
_GEMMA = {
    name: f"<{name.removesuffix('_token')}>"
    for name in ("bos_token", "eos_token", "unk_token", "pad_token", "mask_token")
}
_DEFAULTS_BY_CLASS: Mapping[str, Mapping[str, str]] = {
    "GPT2Tokenizer": _GPT_2,
    "GPTNeoXTokenizer": {**_GPT_2, "pad_token": "<|padding|>"},
    "Qwen2Tokenizer": _QWEN,
    "Qwen3_5Tokenizer": _QWEN,
    "LlamaTokenizer": _LLAMA,
    "TokenizersBackend": _LLAMA,
    "GemmaTokenizer": _GEMMA,
}


def tokenizer_fields(folder: Path, config: AskedFields) -> AskedFields:
    """Return the fields of `tokenizer_config.json`, and of the older `special_tokens_map.json` where that counts.

    It does where there is no `added_tokens_decoder`, as in `transformers`.

    Raises:
        CheckpointError: a file is no JSON object.
    """
    path = folder / "special_tokens_map.json"
    is_older = "added_tokens_decoder" not in config and path.is_file()
    return config.replaced({**config.as_dict(), **read_object(path)}) if is_older else config


def listed_tokens(folder: Path, fields: Mapping[str, Any], known: Mapping[str, int]) -> Mapping[str, Any]:
    """Return `added_tokens_decoder`, or the tokens that the older `added_tokens.json` adds to the vocabulary `known`.

    Raises:
        CheckpointError: a file is no JSON object.
    """
    path = folder / "added_tokens.json"
    if "added_tokens_decoder" in fields or not path.is_file():
        return fields.get("added_tokens_decoder") or {}
    return {
        str(token_id): {"content": text, "normalized": True}
        for text, token_id in read_object(path).items()
        if text not in known
    }


def named_tokens(fields: Mapping[str, Any], tokenizer_class: str | None) -> dict[str, str]:
    """Return the special tokens by name; `tokenizer_class` has some of its own where the fields do not speak of them.

    Beside the standard names there are those that a model gives its own tokens, such as `image_token`.
    """
    defaults = _DEFAULTS_BY_CLASS.get(tokenizer_class or "", {})
    named = {name: text for name, text in defaults.items() if name not in fields}
    own_names = [name for name in fields if name.endswith("_token") and name not in _STANDARD_NAMES]
    entries = {name: fields.get(name) for name in (*_STANDARD_NAMES, *own_names)}
    for group in ("model_specific_special_tokens", "extra_special_tokens"):
        by_name = fields.get(group)
        entries |= by_name if isinstance(by_name, dict) else {}
    return named | {name: text for name, value in entries.items() if (text := token_text(value))}


def additional_tokens(fields: Mapping[str, Any]) -> list[str]:
    """Return the special tokens that have no names."""
    lists = [fields.get(name) for name in ("additional_special_tokens", "extra_special_tokens")]
    return [text for entry in lists if isinstance(entry, list) for value in entry if (text := token_text(value))]


def token_text(value: object) -> str | None:
    """Return a token's text: it is stored as such, or as an object with its properties."""
    if isinstance(value, dict):
        value = value.get("content")
    return value if isinstance(value, str) and value else None
