"""Matches the names of layers with the patterns by which a `quantization_config` chooses some."""

import re
from collections.abc import Iterable

from infer_models.config.json_fields import JsonFields
from infer_models.config.wrappers import name_of_text_tensor

LM_HEAD = "lm_head"
"""The name of the LM head."""
ROUTERS = ("mlp.gate", "mlp.router")
"""Ends of the names of routers of experts, which methods leave alone without saying so."""
_REGEX = "re:"
_LINEAR = "Linear"


def read_patterns(fields: JsonFields, name: str) -> tuple[str, ...]:
    """Read a list of patterns; none where the field is absent.

    Raises:
        CheckpointError: it is no list of strings, or has a regular expression that is none.
    """
    patterns = tuple(fields.texts(name)) if name in fields else ()
    for pattern in patterns:
        if pattern.startswith(_REGEX) and _compiled(pattern.removeprefix(_REGEX)) is None:
            raise fields.invalid(name, f"a list of names and regular expressions, which {pattern!r} is not")
    return patterns


def is_target(name: str, targets: Iterable[str]) -> bool:
    """Return whether one of compressed-tensors' `targets` chooses the dense layer `name`.

    They are names, regular expressions after `re:` that match from the start on, or the class `Linear`, of which
    routers of experts are not.
    """
    return (_LINEAR in targets and not is_excluded(name, ROUTERS)) or is_named(name, targets)


def is_named(name: str, patterns: Iterable[str]) -> bool:
    """Return whether one of the names, or of the regular expressions after `re:`, is that of the layer `name`."""
    return any(_is_named(name, pattern) for pattern in patterns)


def is_excluded(name: str, patterns: Iterable[str]) -> bool:
    """Return whether an entry of `modules_to_not_convert` is the layer `name`, a part of it, or what it is in.

    Entries are names or ends of names of modules, such as `lm_head`, `mlp.gate` and `model.layers.3`, or regular
    expressions that match from the start on. They count in whole components: `gate` is not in `mlp.gate_proj`.
    """
    return any(_is_inside(each, pattern) for pattern in patterns for each in _names_in_wrappers(name))


def _is_named(name: str, pattern: str) -> bool:
    if not pattern.startswith(_REGEX):
        return name_of_text_tensor(pattern) == name
    regex = _compiled(pattern.removeprefix(_REGEX))
    return regex is not None and any(regex.match(each) for each in _names_in_wrappers(name))


def _is_inside(name: str, pattern: str) -> bool:
    if f".{pattern.strip('.')}." in f".{name}.":
        return True
    regex = _compiled(rf"(?:{pattern})(?:(?<=\.)|(?=\.|$))")
    return regex is not None and regex.match(name) is not None


def _names_in_wrappers(name: str) -> tuple[str, ...]:
    """Return the layer's name in a text model and in multimodal ones, whose configurations name it so."""
    return name, f"language_model.{name}", f"model.language_model.{name.removeprefix('model.')}"


def _compiled(regex: str) -> re.Pattern[str] | None:
    try:
        return re.compile(regex)
    except re.error:
        return None
