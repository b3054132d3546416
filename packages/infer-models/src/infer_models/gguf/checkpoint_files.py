"""Finds the files of a GGUF model: one, or all parts of one that is split."""

import re
from dataclasses import replace
from pathlib import Path

from infer_models.errors import CheckpointError
from infer_models.gguf.end_tokens import SCORES, TEXT, TOKEN_TYPES, TOKENS
from infer_models.gguf.header import MAGIC, GgufArray, GgufHeader, read_header
from infer_models.gguf.tensor_names import EMBEDDING

_PART = re.compile(r"(?P<stem>.+)-(?P<number>\d{5})-of-(?P<total>\d{5})\.gguf")
_TOTAL, _NUMBER = "split.count", "split.no"
_TYPE, _MODEL = "general.type", "model"
_OF_PICTURES, _OF_DRAFTS = "mmproj", "mtp-"
"""Parts of names of files that see images, and beginnings of names of those that only draft."""
_MAX_PARTS = 10_000
_MAX_NAMED = 3


def is_gguf(checkpoint: Path) -> bool:
    """Return whether a checkpoint is a GGUF file, not a folder."""
    return checkpoint.is_file()


def starts_as_gguf(path: Path) -> bool:
    """Return whether a file begins as GGUF files do, whatever its name; Ollama's have none."""
    try:
        with path.open("rb") as file:
            return file.read(len(MAGIC)) == MAGIC
    except OSError:
        return False


def gguf_in(folder: Path, kind: str = "") -> Path | None:
    """Return the one GGUF model in a folder, of a split one its first file; None: there is none.

    Args:
        folder: the folder; those inside it are searched too, two levels deep.
        kind: end of the names that are meant, such as `Q4_K_M`.

    Raises:
        CheckpointError: there are several.
    """
    found = sorted(each for depth in ("*.gguf", "*/*.gguf", "*/*/*.gguf") for each in folder.glob(depth))
    found = [each for each in found if _is_meant(each.relative_to(folder), kind)]
    if len(found) > 1:
        found = [each for each in found if _is_model(each)] or found
    if len(found) > 1:
        shown = ", ".join(str(each.relative_to(folder)) for each in found[:_MAX_NAMED])
        raise CheckpointError(f"{folder} holds several GGUF models, such as {shown}; give the file that is meant.")
    return found[0] if found else None


def _is_model(path: Path) -> bool:
    """Return whether a file is a model with weights; one that cannot be read may be one."""
    if _OF_PICTURES in path.name.lower():
        return False
    try:
        header = read_header(path)
    except CheckpointError:
        return True
    has_weights = bool(header.tensors) or header.metadata.get(_TOTAL, 1) != 1
    return _type_of(header) == _MODEL and has_weights and not path.name.startswith(_OF_DRAFTS)


def _type_of(header: GgufHeader) -> str:
    """Return what a file is, such as `model`; those that see images did not always say so."""
    is_clip = header.metadata.get("general.architecture") == "clip"
    return str(header.metadata.get(_TYPE, _OF_PICTURES if is_clip else _MODEL))


def _is_meant(path: Path, kind: str) -> bool:
    """Return whether a file is of this kind, and no further part of a model."""
    match = _PART.fullmatch(path.name)
    is_first = match is None or int(match["number"]) == 1
    stem = path.stem if match is None else match["stem"]
    is_of_kind = re.search(rf"(?:^|[^a-z0-9]){re.escape(kind)}$", stem, re.IGNORECASE) is not None
    return is_first and (is_of_kind or not kind)


def read_model_header(path: Path) -> GgufHeader:
    """Return the header of a model: the metadata of its first file, and the tensors of all.

    Args:
        path: the file, or any part of a split one.

    Raises:
        CheckpointError: a file cannot be read or is no model, a part is missing, or two have a tensor of one name.
    """
    first, *others = (read_header(each) for each in split_files(path))
    if _type_of(first) != _MODEL:
        raise CheckpointError(
            f"{path} is no model: its `{_TYPE}` is `{_type_of(first)[:40]}`; give the file of the model itself."
        )
    tensors = dict(first.tensors)
    for other in others:
        twice = next((name for name in other.tensors if name in tensors), None)
        if twice is not None:
            raise CheckpointError(f"{other.path}: tensor `{twice}` is also in {tensors[twice].path.name}.")
        tensors |= other.tensors
    return _without_spare_tokens(replace(first, tensors=tensors))


def _without_spare_tokens(header: GgufHeader) -> GgufHeader:
    """Return the header of a model without tokens that its embedding has no rows for, if none of them is a text.

    Ollama's files of Gemma 3 have such a token, which stands for pictures.
    """
    kinds = header.metadata.get(TOKEN_TYPES)
    if EMBEDDING not in header.tensors or not isinstance(kinds, GgufArray):
        return header
    rows = header.tensors[EMBEDDING].shape[0]
    if kinds.num_items <= rows or TEXT in kinds.items()[rows:]:
        return header
    lists = {key: header.metadata.get(key) for key in (TOKENS, TOKEN_TYPES, SCORES)}
    cut = {key: each.first(rows) for key, each in lists.items() if isinstance(each, GgufArray)}
    return replace(header, metadata={**header.metadata, **cut})


def split_files(path: Path) -> tuple[Path, ...]:
    """Return the files of the model that `path` is, or is a part of, in order.

    Raises:
        CheckpointError: a part is missing, or the file has another name than its parts have.
    """
    header = read_header(path)
    total = header.metadata.get(_TOTAL, 1)
    if total in (0, 1):
        return (path,)
    match = _PART.fullmatch(path.name)
    if not isinstance(total, int) or not 1 < total <= _MAX_PARTS:
        raise CheckpointError(f"{path}: `{_TOTAL}` is {total!r:.40}; it must be a whole number.")
    if match is None or int(match["total"]) != total:
        raise CheckpointError(
            f"{path} is one of {total} parts of a model; they must be called NAME-00001-of-{total:05}.gguf and so on."
        )
    parts = tuple(path.with_name(f"{match['stem']}-{number:05}-of-{total:05}.gguf") for number in range(1, total + 1))
    missing = [each.name for each in parts if not each.is_file()]
    if missing:
        raise CheckpointError(f"{path}: {missing[0]} is missing beside it; a split model needs all {total} parts.")
    for number, part in enumerate(parts):
        found = read_header(part).metadata.get(_NUMBER)
        if found != number:
            raise CheckpointError(f"{part}: `{_NUMBER}` is {found!r:.40}, but by its name it is part {number + 1}.")
    return parts
