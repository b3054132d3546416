"""Matches the names of layers with the patterns by which a `quantization_config` says how some are quantized.

Which layers are quantized at all, the tensors of the files say: lists of those that are not are needless.
"""

import re
from collections.abc import Iterable

from infer_models.config.json_fields import JsonFields
from infer_models.config.wrappers import name_of_text_tensor

_REGEX = "re:"


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
