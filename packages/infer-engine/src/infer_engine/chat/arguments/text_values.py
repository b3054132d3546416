"""The patterns of the texts that a schema allows, for arguments in which texts are written as they are."""

import re
from collections.abc import Mapping, Sequence
from typing import Any

from llguidance import regex_to_lark

from infer_engine.chat.arguments.marks import ANY_TEXT
from infer_engine.chat.arguments.parameter_types import TEXT, resolved, types_of
from infer_engine.structured.grammar_text import escaped
from infer_engine.structured.json_schema.formats import IPV4

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

_HEX = "[0-9a-fA-F]"
_FORMATS = {"uuid": f"{_HEX}{{8}}-{_HEX}{{4}}-{_HEX}{{4}}-{_HEX}{{4}}-{_HEX}{{12}}", "ipv4": IPV4}
"""Patterns of texts that have a format; of other formats, a schema that has been read has the patterns."""

_ESCAPE_OR_LIST = re.compile(r"\\.|\[\^?(?:\\.|[^\]\\])*\]")
"""An escaped character of a pattern, or a list of characters."""
_MAX_HOPS = 16


def text_patterns(schema: Any, root: Mapping[str, Any], *, strict: bool, hops: int = 0) -> Sequence[str]:
    """Return patterns of which a text must match one, to be written between slashes; none: no text is allowed.

    What cannot be kept of a schema is left out; of a `format` and of a `pattern` with `strict` too, as clients that are
    strict always ask for many.

    Raises:
        ValueError: with `strict`, if something else cannot be kept.
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
    pattern = _of_pattern(schema["pattern"]) if "pattern" in schema else None
    if pattern is None and strict:
        pattern = _FORMATS.get(schema.get("format", ""))
    return pattern or pattern_of_lengths(schema)


def pattern_of_lengths(schema: Mapping[str, Any]) -> str:
    """Return the pattern of texts of the length that a schema asks for."""
    least, most = schema.get("minLength", 0), schema.get("maxLength")
    if most is None:
        return ANY_TEXT if not least else rf"(.|\n){{{least},}}"
    return rf"(.|\n){{{least},{most}}}"


def _of_pattern(pattern: str) -> str | None:
    """Return the pattern of whole texts that `pattern` is found in; None if its `^` and `$` are not at its two ends."""
    begins, ends = pattern.startswith("^"), pattern.endswith("$") and not pattern.endswith("\\$")
    body = pattern[begins : len(pattern) - ends]
    others = _ESCAPE_OR_LIST.sub("", body)
    if "^" in others or "$" in others or ((begins or ends) and "|" in _outside_of_groups(body)):
        return None
    inner = regex_to_lark(body, "d")
    return f"{'' if begins else ANY_TEXT}({inner}){'' if ends else ANY_TEXT}"


def _outside_of_groups(pattern: str) -> str:
    """Return what of a pattern is in no group and in no list of characters."""
    pattern = re.sub(r"\\.", "", pattern)
    while pattern != (less := re.sub(r"\[[^\]]*\]|\([^()\[\]]*\)", "", pattern)):
        pattern = less
    return pattern


def _not_kept(word: str) -> str:
    return f"`{word}` cannot be kept in calls whose texts are not written as JSON; leave it out, or `strict`."
