"""Reads one file of a tokenizer; an error names the file in one line."""

import json
from pathlib import Path
from typing import Any

from infer_models.errors import CheckpointError
from infer_models.file_faults import fault_of_content, unreadable


def read_text(path: Path) -> str:
    """Return the text of a file.

    Raises:
        CheckpointError: it cannot be read, or is no UTF-8.
    """
    fault = fault_of_content(path) if path.suffix == ".json" else None
    if fault is not None:
        raise CheckpointError(f"{path} {fault}.")
    try:
        return path.read_text(encoding="utf-8-sig")
    except OSError as error:
        raise unreadable(path, error) from error
    except UnicodeDecodeError as error:
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
    """Return the message of an error in one line, or its type where it has none."""
    return " ".join(str(error).split())[:300] or type(error).__name__
