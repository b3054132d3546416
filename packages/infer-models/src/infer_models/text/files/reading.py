"""Reads one file of a tokenizer; an error names the file in one line."""

import json
from pathlib import Path
from typing import Any

from infer_models.errors import CheckpointError


def read_text(path: Path) -> str:
    """Return the text of a file.

    Raises:
        CheckpointError: it cannot be read, or is no UTF-8.
    """
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise CheckpointError(f"{path} cannot be read: {one_line(error)}") from error


def read_object(path: Path) -> dict[str, Any]:
    """Return the JSON object in a file.

    Raises:
        CheckpointError: there is none.
    """
    try:
        value = json.loads(read_text(path))
    except (ValueError, RecursionError) as error:
        raise CheckpointError(f"{path} is not JSON: {one_line(error)}") from error
    if not isinstance(value, dict):
        raise CheckpointError(f"{path} holds a {type(value).__name__}, not an object.")
    return value


def one_line(error: BaseException) -> str:
    """Return what an error says, or its type."""
    return " ".join(str(error).split())[:300] or type(error).__name__
