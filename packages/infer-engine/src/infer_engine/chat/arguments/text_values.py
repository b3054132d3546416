"""The patterns of the texts that a schema allows, for arguments in which texts are written as they are."""

import re
from collections.abc import Mapping, Sequence
from typing import Any

from llguidance import regex_to_lark

from infer_engine.chat.arguments.marks import ANY_TEXT
from infer_engine.chat.arguments.parameter_types import TEXT, resolved, types_of
from infer_engine.structured.grammar_text import escaped

_ANNOTATIONS = frozenset(("title", "description", "default", "examples", "deprecated", "$schema", "$defs"))
OF_TEXTS = frozenset(("pattern", "minLength", "maxLength", "format"))
"""Words of schemas that are about texts alone."""
_KEPT = OF_TEXTS | {"type", "enum", "const"}
_OF_OTHERS = frozenset(
    (
        *("items", "prefixItems", "minItems", "maxItems", "properties", "required", "additionalProperties"),
        *("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"),
    )
)

_MAX_HOPS = 16


def text_patterns(schema: Any, root: Mapping[str, Any], *, strict: bool, hops: int = 0) -> Sequence[str]:
    """Return patterns of which a text must match one, to be written between slashes; none: no text is allowed.

    What cannot be kept of a schema is left out.

    Raises:
        ValueError: with `strict`, if something cannot be kept.
    """
    if TEXT not in types_of(schema, root):
        return ()
    schema = resolved(schema, root)
    for word in ("anyOf", "oneOf"):
        if isinstance(schema.get(word), list) and hops < _MAX_HOPS and not (OF_TEXTS | {"enum"}) & schema.keys():
            found = [text_patterns(each, root, strict=strict, hops=hops + 1) for each in schema[word]]
            return tuple(dict.fromkeys(pattern for patterns in found for pattern in patterns))
    unknown = schema.keys() - _KEPT - _ANNOTATIONS - _OF_OTHERS
    if unknown and strict:
        raise ValueError(_not_kept(min(unknown)))
    if "const" in schema or isinstance(schema.get("enum"), list):
        listed = [schema["const"]] if "const" in schema else schema["enum"]
        return tuple(escaped(each) for each in listed if isinstance(each, str))
    return (_one_pattern(schema, strict=strict),)


def _one_pattern(schema: Mapping[str, Any], *, strict: bool) -> str:
    least, most = schema.get("minLength", 0), schema.get("maxLength")
    pattern = _of_pattern(schema["pattern"]) if "pattern" in schema else None
    if strict and ("format" in schema or ("pattern" in schema and (pattern is None or least or most is not None))):
        raise ValueError(_not_kept("format" if "format" in schema else "pattern"))
    if pattern is not None:
        return pattern
    if most is None:
        return ANY_TEXT if not least else rf"(.|\n){{{least},}}"
    return rf"(.|\n){{{least},{most}}}"


def _of_pattern(pattern: str) -> str | None:
    """Return the pattern of whole texts that `pattern` is found in; None if its `^` and `$` are not at its two ends."""
    begins, ends = pattern.startswith("^"), pattern.endswith("$") and not pattern.endswith("\\$")
    body = pattern[begins : len(pattern) - ends]
    others = re.sub(r"\[\^|\\[$^]", "", body)
    if "^" in others or "$" in others or ((begins or ends) and "|" in body):
        return None
    inner = regex_to_lark(body, "d")
    return f"{'' if begins else ANY_TEXT}({inner}){'' if ends else ANY_TEXT}"


def _not_kept(word: str) -> str:
    return f"`{word}` cannot be kept in calls whose texts are not written as JSON; leave it out, or `strict`."
