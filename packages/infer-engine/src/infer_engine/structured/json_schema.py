"""Which JSON Schemas (draft 2020-12) can be kept: every text that is generated validates. Compiles nothing.

What the grammar library ignores, or keeps only in part, is refused by name. A word that no specification has is refused
too: it may be a slip. Documentation of every keyword is in `docs/structured-output.md`.
"""

import math
from collections.abc import Callable, Iterator
from typing import Any

from infer_engine.structured.json_schema_checks import check_schema

MAX_DEPTH = 64
MAX_ENUM = 1_000
MAX_MULTIPLE_OF = 10_000
"""The compilation of a larger one takes seconds, of a million half a minute."""

_DAY_OF_MONTH = r"(?:0[1-9]|1[0-9]|2[0-8])"
_LEAP_YEAR = r"(?:[0-9]{2}(?:0[48]|[2468][048]|[13579][26])|(?:[02468][048]|[13579][26])00)"  # 1972, 2000, not 1900
_DATE = (
    rf"(?:[0-9]{{4}}-(?:(?:0[1-9]|1[0-2])-{_DAY_OF_MONTH}|(?:0[13-9]|1[0-2])-(?:29|30)|(?:0[13578]|1[02])-31)"
    rf"|{_LEAP_YEAR}-02-29)"
)
_HOURS_MINUTES = r"(?:[01][0-9]|2[0-3]):[0-5][0-9]"
_TIME = rf"{_HOURS_MINUTES}:[0-5][0-9](?:\.[0-9]{{1,9}})?(?:Z|[+-]{_HOURS_MINUTES})"
FORMAT_PATTERNS = {"date": f"^{_DATE}$", "time": f"^{_TIME}$", "date-time": f"^{_DATE}T{_TIME}$"}
"""Formats that the library keeps only in part, as patterns: RFC 3339 without leap seconds and small letters."""
FORMATS = frozenset({"duration", "email", "hostname", "ipv4", "ipv6", "uri", "uuid"})

_ANNOTATIONS = frozenset(
    [
        "title",
        "description",
        "default",
        "examples",
        "example",
        "deprecated",
        "readOnly",
        "writeOnly",
        "discriminator",
        "$comment",
        "contentEncoding",
        "contentMediaType",
        "contentSchema",
    ]
)
_TYPES = ("string", "number", "integer", "boolean", "null", "array", "object")


def prepare_schema(schema: Any) -> Any:
    """Return a copy of `schema` that means the same, or a little less, to the grammar library.

    Takes time in proportion to the schema's size.

    Raises:
        ValueError: it is no JSON Schema, or cannot be kept; the message names the keyword and where it stands.
    """
    _check_depth(schema)
    prepared = _prepare(schema, "#")
    check_schema(prepared)
    return prepared


def _check_depth(value: Any) -> None:
    level = [value]
    for _ in range(MAX_DEPTH):
        level = [inner for each in level if isinstance(each, dict | list) for inner in _items(each)]
        if not level:
            return
    raise ValueError(f"the schema is nested more than {MAX_DEPTH} deep; make it flatter, for example with `$defs`")


def _items(value: Any) -> Iterator[Any]:
    return iter(value.values() if isinstance(value, dict) else value)


def _prepare(schema: Any, place: str) -> Any:
    if isinstance(schema, bool):
        return schema
    if not isinstance(schema, dict):
        raise ValueError(f"{place} is {_shown(schema)}; a schema is an object or a boolean")  # noqa: TRY004 - of a value, not of our arguments
    prepared = {}
    for keyword, value in schema.items():
        here = f"{place}/{keyword}"
        if keyword in _ANNOTATIONS or (keyword == "uniqueItems" and value is False):
            continue
        if keyword not in _KEYWORDS:
            raise ValueError(f"`{keyword}` at {place} {_reason(keyword)}")
        prepared[keyword] = _KEYWORDS[keyword](value, here)
    _check_together(prepared, place)
    return _with_format(prepared, place)


def _reason(keyword: str) -> str:
    if keyword == "x-guidance":
        return "is an option of the grammar library, which the server sets; leave it out"
    if keyword in _NOT_KEPT:
        return f"is not supported: {_NOT_KEPT[keyword]}"
    return "is not a keyword of JSON Schema 2020-12; correct it, or leave it out"


def _check_together(schema: dict[str, Any], place: str) -> None:
    """Refuse keywords that cannot be kept beside one another."""
    has_free_names = schema.get("additionalProperties", True) is not False or "patternProperties" in schema
    if schema.get("minProperties", 0) > 1 and has_free_names:
        raise ValueError(
            f"`minProperties` at {place} cannot be kept where properties may have any name, because a name may come "
            "twice; list the properties and send `additionalProperties` false, or leave it out"
        )


def _with_format(schema: dict[str, Any], place: str) -> dict[str, Any]:
    """Return `schema` with a pattern in place of a format that the library keeps only in part."""
    pattern = FORMAT_PATTERNS.get(schema.get("format", ""))
    if pattern is None:
        return schema
    if not {"pattern", "minLength", "maxLength"}.isdisjoint(schema):
        raise ValueError(f"`format` at {place} is supported without `pattern` and lengths only; leave one of them out")
    return {name: value for name, value in schema.items() if name != "format"} | {"pattern": pattern}


def _schema(value: Any, place: str) -> Any:
    return _prepare(value, place)


def _schemas_by_name(value: Any, place: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise ValueError(f"{place} is {_shown(value)}; it must be an object of schemas")  # noqa: TRY004 - as above
    return {name: _prepare(inner, f"{place}/{name}") for name, inner in value.items()}


def _schema_list(value: Any, place: str) -> list[Any]:
    if not isinstance(value, list) or not value:
        raise ValueError(f"{place} is {_shown(value)}; it must be a list of schemas")
    return [_prepare(inner, f"{place}/{index}") for index, inner in enumerate(value)]


def _plain(allowed: str, holds: Callable[[Any], bool]) -> Callable[[Any, str], Any]:
    """Return the check of a keyword without schemas inside; `allowed` says what it must be."""

    def check(value: Any, place: str) -> Any:
        if not holds(value):
            raise ValueError(f"{place} is {_shown(value)}; it must be {allowed}")
        return value

    return check


def _count(value: Any, place: str) -> int:
    """Return a count as a whole number: the library takes no `2.0`."""
    if not _is_number(value) or value < 0 or value != int(value):
        raise ValueError(f"{place} is {_shown(value)}; it must be a whole number of at least 0")
    return int(value)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _are_texts(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(each, str) for each in value)


def _is_type(value: Any) -> bool:
    names = value if isinstance(value, list) and value else [value]
    return all(isinstance(name, str) and name in _TYPES for name in names)


_TEXT = _plain("a text", lambda value: isinstance(value, str))
_NUMBER = _plain("a number", _is_number)

_KEYWORDS: dict[str, Callable[[Any, str], Any]] = {
    "$schema": _plain("a draft of JSON Schema", lambda value: isinstance(value, str) and "json-schema.org/" in value),
    "$id": _TEXT,
    "$anchor": _TEXT,
    "$ref": _plain(
        "a place in the same schema, such as `#/$defs/name`: nothing is fetched",
        lambda value: isinstance(value, str) and value.startswith("#"),
    ),
    "$defs": _schemas_by_name,
    "definitions": _schemas_by_name,
    "type": _plain("one of " + ", ".join(f"`{name}`" for name in _TYPES) + ", or a list of them", _is_type),
    "enum": _plain(
        f"a list of 1 to {MAX_ENUM} values", lambda value: isinstance(value, list) and 1 <= len(value) <= MAX_ENUM
    ),
    "const": lambda value, _: value,
    "anyOf": _schema_list,
    "oneOf": _schema_list,
    "allOf": _schema_list,
    "properties": _schemas_by_name,
    "patternProperties": _schemas_by_name,
    "additionalProperties": _schema,
    "required": _plain("a list of texts", _are_texts),
    "minProperties": _count,
    "maxProperties": _count,
    "items": _schema,
    "prefixItems": _schema_list,
    "minItems": _count,
    "maxItems": _count,
    "minLength": _count,
    "maxLength": _count,
    "pattern": _TEXT,
    "format": _plain(
        "one of " + ", ".join(f"`{name}`" for name in sorted(FORMATS | set(FORMAT_PATTERNS))) + "; leave it out",
        lambda value: isinstance(value, str) and (value in FORMATS or value in FORMAT_PATTERNS),
    ),
    "minimum": _NUMBER,
    "maximum": _NUMBER,
    "exclusiveMinimum": _NUMBER,
    "exclusiveMaximum": _NUMBER,
    "multipleOf": _plain(
        f"a number in (0, {MAX_MULTIPLE_OF}]", lambda value: _is_number(value) and 0 < value <= MAX_MULTIPLE_OF
    ),
}

_NOT_KEPT = {
    "not": "say what is allowed instead",
    "if": "use `anyOf` with one object for each case",
    "then": "use `anyOf` with one object for each case",
    "else": "use `anyOf` with one object for each case",
    "uniqueItems": "leave it out, and check the result",
    "contains": "use `prefixItems`, or check the result",
    "minContains": "check the result",
    "maxContains": "check the result",
    "propertyNames": "use `patternProperties` with `additionalProperties` false",
    "dependentRequired": "use `anyOf` with one object for each case",
    "dependentSchemas": "use `anyOf` with one object for each case",
    "dependencies": "use `anyOf` with one object for each case",
    "unevaluatedProperties": "use `additionalProperties`",
    "unevaluatedItems": "use `items`",
    "additionalItems": "use `items` after `prefixItems`",
    "$dynamicRef": "use `$ref`",
    "$dynamicAnchor": "use `$anchor`",
    "$recursiveRef": "use `$ref`",
    "$recursiveAnchor": "use `$anchor`",
    "$vocabulary": "leave it out",
    "nullable": 'use `"type": [..., "null"]`',
}


def _shown(value: Any) -> str:
    match value:
        case dict():
            return "an object"
        case list():
            return "a list"
        case None:
            return "null"
        case bool():
            return "true" if value else "false"
        case _:
            text = repr(value)
            return text if len(text) <= 40 else f"{text[:37]}..."
