"""Reads the files of a tokenizer: `tokenizer.json`, `tokenizer_config.json` and the chat template's."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jinja2
import tokenizers

from infer_models.errors import CheckpointError
from infer_models.file_faults import fault_of_content, unreadable
from infer_models.text.chat.template import ChatTemplate

_NAMED_TOKENS = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenizerFiles:
    """What the files say.

    Attributes:
        tokenizer: the `tokenizers` object, with every special token marked as such.
        named_tokens: special tokens by name, such as `bos_token`.
        chat_template: compiled; None where the checkpoint has none.
        tool_template: that of conversations with tools, where it is another one.
    """

    tokenizer: tokenizers.Tokenizer
    named_tokens: Mapping[str, str]
    chat_template: ChatTemplate | None
    tool_template: ChatTemplate | None


def read_tokenizer_files(folder: Path) -> TokenizerFiles:
    """Read the tokenizer of the checkpoint in `folder`; only `tokenizer.json` must be there.

    Raises:
        CheckpointError: a file is missing or is not what its name says; the message names it.
    """
    tokenizer = _read_tokenizer(folder / "tokenizer.json")
    config_path = folder / "tokenizer_config.json"
    config = _read_config(config_path) if config_path.exists() else {}
    named_tokens = {name: text for name in _NAMED_TOKENS if (text := _token_text(config.get(name)))}
    _add_listed_tokens(tokenizer, config, config_path)
    _mark_special(tokenizer, [*named_tokens.values(), *_additional_tokens(config)])
    chat_template, tool_template = _read_templates(folder, config, named_tokens)
    return TokenizerFiles(
        tokenizer=tokenizer, named_tokens=named_tokens, chat_template=chat_template, tool_template=tool_template
    )


def _read_tokenizer(path: Path) -> tokenizers.Tokenizer:
    if not path.is_file() and not path.is_symlink():
        raise CheckpointError(
            f"{path} is missing: the checkpoint has no tokenizer. Save it with `transformers`' fast tokenizer, which "
            "writes this file."
        )
    try:
        tokenizer = tokenizers.Tokenizer.from_str(_read_text(path))
    except CheckpointError:
        raise
    except Exception as error:  # tokenizers raises plain `Exception`
        raise CheckpointError(f"{path} is no tokenizer that `tokenizers` can read: {_one_line(error)}") from error
    # Files saved while training may carry both, and they would change prompts.
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return tokenizer


def _read_config(path: Path) -> dict[str, Any]:
    try:
        config = json.loads(_read_text(path))
    except (ValueError, RecursionError) as error:
        raise CheckpointError(f"{path} is not JSON: {_one_line(error)}") from error
    if not isinstance(config, dict):
        raise CheckpointError(f"{path} holds a {type(config).__name__}, not an object.")
    return config


def _read_text(path: Path) -> str:
    fault = fault_of_content(path) if path.suffix == ".json" else None
    if fault is not None:
        raise CheckpointError(f"{path} {fault}.")
    try:
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise unreadable(path, error) from error
    except UnicodeDecodeError as error:
        raise CheckpointError(f"{path} cannot be read: {_one_line(error)}") from error


def _token_text(value: object) -> str | None:
    """Return a token's text: it is stored as such, or as an object with its properties."""
    if isinstance(value, dict):
        value = value.get("content")
    return value if isinstance(value, str) and value else None


def _additional_tokens(config: Mapping[str, Any]) -> list[str]:
    values: list[object] = []
    for name in ("additional_special_tokens", "extra_special_tokens"):
        entry = config.get(name)
        values += entry.values() if isinstance(entry, dict) else entry if isinstance(entry, list) else []
    return [text for value in values if (text := _token_text(value))]


def _add_listed_tokens(tokenizer: tokenizers.Tokenizer, config: Mapping[str, Any], path: Path) -> None:
    """Add the tokens that the configuration lists and `tokenizer.json` lacks, with the ids that it gives them."""
    listed = config.get("added_tokens_decoder") or {}
    try:
        entries = sorted((int(token_id), dict(entry)) for token_id, entry in listed.items())
        tokens = [
            (token_id, tokenizers.AddedToken(**{key: entry[key] for key in entry if key in _ADDED_TOKEN_FIELDS}))
            for token_id, entry in entries
        ]
    except (TypeError, ValueError, AttributeError) as error:
        raise CheckpointError(f"{path}: `added_tokens_decoder` is damaged: {_one_line(error)}") from error
    known = tokenizer.get_added_tokens_decoder()
    for token_id, token in tokens:
        if token_id in known and known[token_id].content == token.content:
            continue
        tokenizer.add_special_tokens([token]) if token.special else tokenizer.add_tokens([token])
        if tokenizer.token_to_id(token.content) != token_id:
            raise CheckpointError(
                f"{path}: `added_tokens_decoder` gives {token.content!r} the id {token_id}, but by tokenizer.json it "
                f"is {tokenizer.token_to_id(token.content)}: the files belong to different tokenizers."
            )


_ADDED_TOKEN_FIELDS = ("content", "single_word", "lstrip", "rstrip", "normalized", "special")


def _mark_special(tokenizer: tokenizers.Tokenizer, texts: list[str]) -> None:
    """Make tokens of the vocabulary special that are so by the configuration alone."""
    special = {token.content for token in tokenizer.get_added_tokens_decoder().values() if token.special}
    missing = [text for text in texts if text not in special and tokenizer.token_to_id(text) is not None]
    tokenizer.add_special_tokens(missing)


def _read_templates(
    folder: Path, config: Mapping[str, Any], named_tokens: Mapping[str, str]
) -> tuple[ChatTemplate | None, ChatTemplate | None]:
    """Return the chat template, and the one of conversations with tools if it is another.

    Processors of multimodal models keep theirs in `chat_template.json`. Where the tokenizer has one too, that counts:
    `transformers` gives it to texts.
    """
    path = folder / "chat_template.jinja"
    older_path = folder / "chat_template.json"
    if path.is_file():
        source: object = _read_text(path)
    elif config.get("chat_template") is None and older_path.is_file():
        path = older_path
        source = _read_config(path).get("chat_template")
    else:
        path = folder / "tokenizer_config.json"
        source = config.get("chat_template")
    tool_source = None
    if isinstance(source, list):  # several templates by name
        by_name = {entry.get("name"): entry.get("template") for entry in source if isinstance(entry, dict)}
        source, tool_source = by_name.get("default"), by_name.get("tool_use")
    return _compile(source, path, named_tokens), _compile(tool_source, path, named_tokens)


def _compile(source: object, path: Path, named_tokens: Mapping[str, str]) -> ChatTemplate | None:
    if source is None:
        return None
    if not isinstance(source, str):
        raise CheckpointError(f"{path}: `chat_template` is a {type(source).__name__}, not text.")
    try:
        return ChatTemplate(source, variables=named_tokens)
    except jinja2.TemplateSyntaxError as error:
        raise CheckpointError(f"{path}: the chat template is broken at line {error.lineno}: {error.message}") from error


def _one_line(error: BaseException) -> str:
    return " ".join(str(error).split())[:300] or type(error).__name__
