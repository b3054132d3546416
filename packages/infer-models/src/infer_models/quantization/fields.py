"""Reads the fields of a `quantization_config`: which numbers share a scale, and the patterns that name layers.

Which layers are quantized at all, the tensors of the files say: lists of those that are not are needless.
"""

import re
from collections.abc import Iterable

from infer_models.config.json_fields import JsonFields
from infer_models.config.wrappers import name_of_text_tensor

_REGEX = "re:"


def read_group_size(fields: JsonFields, name: str) -> int | None:
    """Read how many inputs share a scale; -1: all of them, returned as None.

    Raises:
        CheckpointError: it is another number below 1.
    """
    group_size = fields.whole_number(name, 128)
    if group_size != -1 and group_size < 1:
        raise fields.invalid(name, "a whole number of at least 1, or -1 for all inputs")
    return None if group_size == -1 else group_size


def read_block(fields: JsonFields, name: str) -> tuple[int, int]:
    """Read the rows and columns of a block.

    Raises:
        CheckpointError: they are not two whole numbers of at least 1.
    """
    block = fields.value(name)
    if isinstance(block, str):  # older files: `128x128`
        sizes = [int(each) if each.isdecimal() else 0 for each in block.split("x")]
    else:
        sizes = fields.indices(name)
    if len(sizes) != 2 or min(sizes) < 1:
        raise fields.invalid(name, "two whole numbers of at least 1")
    return sizes[0], sizes[1]


def read_patterns(fields: JsonFields, name: str) -> tuple[str, ...]:
    """Read a list of patterns; none where the field is absent.

    Raises:
        CheckpointError: it is no list of strings, or has a regular expression that is none.
    """
    patterns = tuple(fields.texts(name)) if name in fields else ()
    for pattern in patterns:
        if pattern.startswith(_REGEX) and compiled(pattern.removeprefix(_REGEX)) is None:
            raise fields.invalid(name, f"a list of names and regular expressions, which {pattern!r} is not")
    return patterns


def is_named(name: str, patterns: Iterable[str]) -> bool:
    """Return whether one of the names, or of the regular expressions after `re:`, is that of the layer `name`."""
    return any(_is_named(name, pattern) for pattern in patterns)


def matches(regex: str, name: str) -> bool:
    """Return whether a regular expression matches the layer `name` from the start on, as any checkpoint names it."""
    expression = compiled(regex)
    return expression is not None and any(expression.match(each) for each in names_in_wrappers(name))


def names_in_wrappers(name: str) -> tuple[str, ...]:
    """Return the layer's name in a text model and in multimodal ones, whose configurations name it so."""
    return name, f"language_model.{name}", f"model.language_model.{name.removeprefix('model.')}"


def compiled(regex: str) -> re.Pattern[str] | None:
    """Return a regular expression; None: it is none."""
    try:
        return re.compile(regex)
    except re.error:
        return None


def _is_named(name: str, pattern: str) -> bool:
    if not pattern.startswith(_REGEX):
        return name_of_text_tensor(pattern) == name
    return matches(pattern.removeprefix(_REGEX), name)
