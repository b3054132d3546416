"""Finds the chat templates of a checkpoint, in every place where they are saved."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jinja2

from infer_models.errors import CheckpointError
from infer_models.text.chat.templates.template import ChatTemplate
from infer_models.text.files.reading import read_object, read_text

_Sources = dict[object, tuple[object, Path]]


def read_chat_templates(
    folder: Path, config: Mapping[str, Any], named_tokens: Mapping[str, str]
) -> tuple[ChatTemplate | None, ChatTemplate | None]:
    """Return the chat template, and the one of conversations with tools if it is another.

    Files of their own come before `tokenizer_config.json`, as in `transformers`: `chat_template.jinja`, and others by
    name in `additional_chat_templates`. Processors of multimodal models keep theirs in `chat_template.json`, which
    counts where the tokenizer has none.

    Raises:
        CheckpointError: a template cannot be read or compiled; the message names the file.
    """
    by_name = _template_files(folder)
    if "default" not in by_name:
        by_name = _configured(folder, config) | by_name
    default = by_name.get("default") or by_name.get("tool_use")
    return _compile(default, named_tokens), _compile(by_name.get("tool_use"), named_tokens)


def _template_files(folder: Path) -> _Sources:
    paths = {path.stem: path for path in sorted((folder / "additional_chat_templates").glob("*.jinja"))}
    if (folder / "chat_template.jinja").is_file():
        paths["default"] = folder / "chat_template.jinja"
    return {name: (read_text(path), path) for name, path in paths.items()}


def _configured(folder: Path, config: Mapping[str, Any]) -> _Sources:
    path, source = folder / "tokenizer_config.json", config.get("chat_template")
    processors = folder / "chat_template.json"
    if source is None and processors.is_file():
        path, source = processors, read_object(processors).get("chat_template")
    if isinstance(source, list):  # several templates by name
        source = {entry.get("name"): entry.get("template") for entry in source if isinstance(entry, dict)}
    by_name = source if isinstance(source, dict) else {"default": source}
    return {name: (each, path) for name, each in by_name.items() if each is not None}


def _compile(found: tuple[object, Path] | None, named_tokens: Mapping[str, str]) -> ChatTemplate | None:
    if found is None:
        return None
    source, path = found
    if not isinstance(source, str):
        raise CheckpointError(f"{path}: `chat_template` is a {type(source).__name__}, not text.")
    try:
        return ChatTemplate(source, variables=named_tokens)
    except jinja2.TemplateSyntaxError as error:
        raise CheckpointError(f"{path}: the chat template is broken at line {error.lineno}: {error.message}") from error
