"""Reads the files of a tokenizer: `tokenizer.json` or files in its place, `tokenizer_config.json`, chat templates."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import tokenizers

from infer_models.asked_fields import AskedFields
from infer_models.config.unread_fields import without_ineffective
from infer_models.errors import CheckpointError
from infer_models.file_faults import fault_of_folder
from infer_models.gguf.checkpoint_files import is_gguf
from infer_models.text.files.chat_templates import read_chat_templates
from infer_models.text.files.gguf_tokenizer import read_gguf_tokenizer
from infer_models.text.files.named_tokens import additional_tokens, listed_tokens, named_tokens, tokenizer_fields
from infer_models.text.files.reading import one_line, read_object, read_text
from infer_models.text.files.tokenizer_parts import TokenizerFiles
from infer_models.text.files.vocabulary_files import add_ends, build_tokenizer, tokenizer_class_of


def read_tokenizer_files(folder: Path) -> TokenizerFiles:
    """Read the tokenizer of the checkpoint in `folder`: `tokenizer.json`, or the vocabulary that it is made of.

    Of a GGUF file it is that of its metadata.

    Raises:
        CheckpointError: a file is missing, or of another kind than its name says; the message names it.
    """
    if is_gguf(folder):
        return read_gguf_tokenizer(folder)
    path, config_path = folder / "tokenizer.json", folder / "tokenizer_config.json"
    config = AskedFields(read_object(config_path) if config_path.exists() else {})
    fields = tokenizer_fields(folder, config)
    is_ready = path.is_file() or path.is_symlink()
    tokenizer_class = tokenizer_class_of(folder, fields)
    tokenizer = _read_tokenizer(path) if is_ready else build_tokenizer(folder, fields, tokenizer_class)
    if tokenizer is None:
        raise _no_tokenizer(folder)
    named = named_tokens(fields, tokenizer_class)
    _add_listed_tokens(tokenizer, listed_tokens(folder, fields, tokenizer.get_vocab()), config_path)
    _mark_special(tokenizer, [*named.values(), *additional_tokens(fields)])
    if not is_ready:
        add_ends(tokenizer, fields, named)
    chat_template, tool_template = read_chat_templates(folder, config, named)
    return TokenizerFiles(
        tokenizer=tokenizer,
        named_tokens=named,
        chat_template=chat_template,
        tool_template=tool_template,
        unread=tuple(without_ineffective(config.unread)),
    )


def _read_tokenizer(path: Path) -> tokenizers.Tokenizer:
    try:
        tokenizer = tokenizers.Tokenizer.from_str(read_text(path))
    except CheckpointError:
        raise
    except Exception as error:  # tokenizers raises plain `Exception`
        raise CheckpointError(f"{path} is no tokenizer that `tokenizers` can read: {one_line(error)}") from error
    # Files saved while training may carry both, and they would change prompts.
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return tokenizer


def _no_tokenizer(folder: Path) -> CheckpointError:
    fault = None if (folder / "config.json").exists() else fault_of_folder(folder)
    if fault is not None:
        return CheckpointError(f"{folder}: {fault}.")
    if (folder / "tekken.json").is_file():
        return CheckpointError(
            f"{folder / 'tekken.json'} is the only tokenizer, in Mistral's own format, which is not read here; add the "
            "`tokenizer.json` that `transformers` saves for this model."
        )
    return CheckpointError(
        f"{folder / 'tokenizer.json'} is missing: the checkpoint has no tokenizer, and neither `vocab.json` with "
        "`merges.txt` nor `tokenizer.model` to make one of. Save it with `transformers`' fast tokenizer, which writes "
        "this file."
    )


def _add_listed_tokens(tokenizer: tokenizers.Tokenizer, listed: Mapping[str, Any], path: Path) -> None:
    """Add the tokens that the configuration lists, with its ids and properties, which count where the files differ."""
    try:
        entries = sorted((int(token_id), dict(entry)) for token_id, entry in listed.items())
        tokens = [
            (token_id, tokenizers.AddedToken(**{key: entry[key] for key in entry if key in _ADDED_TOKEN_FIELDS}))
            for token_id, entry in entries
        ]
    except (TypeError, ValueError, AttributeError) as error:
        raise CheckpointError(f"{path}: `added_tokens_decoder` is damaged: {one_line(error)}") from error
    known = tokenizer.get_added_tokens_decoder()
    for token_id, token in tokens:
        if token_id in known and repr(known[token_id]) == repr(token):
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
