"""`prepare_schema`: reads a JSON Schema (draft 2020-12) keyword by keyword. Compiles nothing.

A schema that is taken exactly is kept exactly: every text that is generated validates, and what the grammar library
ignores, or keeps only in part, is refused by name, as is a word that no specification has: it may be a slip. Otherwise
what is kept is kept exactly, and what cannot be is wider (`json_schema_widening`). Documentation of every keyword is in
`docs/structured-output.md`.
"""

import math
from collections.abc import Callable, Iterator
from typing import Any

from infer_engine.structured.errors import NotKeptError
from infer_engine.structured.json_schema.checks import check_schema
from infer_engine.structured.json_schema.dialects import respelled
from infer_engine.structured.json_schema.ends import check_ends
from infer_engine.structured.json_schema.exactness import MAX_ENUM
from infer_engine.structured.json_schema.formats import FORMAT_KEYWORDS, LIBRARY_FORMATS, WIDER_FORMAT_KEYWORDS
from infer_engine.structured.json_schema.patterns import names_of_pattern
from infer_engine.structured.json_schema.references import localized
from infer_engine.structured.json_schema.widening import Refuse, exactly, whatever_it_is

MAX_DEPTH = 64
MAX_MULTIPLE_OF = 10_000
"""The compilation of a larger one takes seconds, of a million half a minute."""

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
        "externalDocs",
        "xml",
    ]
)
_FORMATS = sorted(LIBRARY_FORMATS | FORMAT_KEYWORDS.keys())
_TYPES = ("string", "number", "integer", "boolean", "null", "array", "object")


def prepare_schema(schema: Any, refuse: Refuse = exactly) -> Any:
    """Return a copy of `schema` that means the same, or a little less, to the grammar library.

    What cannot be kept goes to `refuse`, which raises, or makes the copy wider. Takes time in proportion to the size of
    the schema.

    Raises:
        ValueError: it is no JSON Schema, nothing matches it, or it cannot be kept, and `refuse` does not take it as
            whatever it is; the message names the keyword and where it stands.
    """
    _check_depth(schema)
    schema = localized(schema, _PLAIN.keys() | _NOT_KEPT.keys())
    definitions = schema.get("$defs") if isinstance(schema, dict) else None
    prepared = _Reader(refuse, definitions if isinstance(definitions, dict) else {}).schema(schema, "#")
    check_schema(prepared, refuse)
    if refuse is not whatever_it_is:
        check_ends(prepared)
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


class _Reader:
    """Reads schemas one inside another; what cannot be kept goes to one `refuse`."""

    def __init__(self, refuse: Refuse, definitions: dict[str, Any]) -> None:
        self._refuse = refuse
        self._definitions = definitions
        self._inner: dict[str, Callable[[Any, str], Any]] = {
            "$defs": self._by_name,
            "definitions": self._by_name,
            "anyOf": self._list,
            "oneOf": self._list,
            "allOf": self._list,
            "properties": self._by_name,
            "patternProperties": self._by_name,
            "additionalProperties": self.schema,
            "items": self.schema,
            "prefixItems": self._list,
        }

    def schema(self, schema: Any, place: str) -> Any:
        """Return the copy of the schema that stands at `place`."""
        if isinstance(schema, bool):
            return schema
        if not isinstance(schema, dict):
            raise ValueError(f"{place} is {_shown(schema)}; a schema is an object or a boolean")  # noqa: TRY004 - of a value, not of our arguments
        if self._refuse is not exactly:
            schema = respelled(schema, self._definitions)
        prepared: dict[str, Any] = {}
        for keyword, value in schema.items():
            if _has_no_effect(keyword, schema):
                continue
            try:
                prepared[keyword] = self._keyword(keyword, value, place)
            except ValueError as error:
                self._refuse(prepared, keyword, value, error)
        self._check_together(prepared, place)
        self._replace_format(prepared)
        _list_literal_names(prepared)
        return prepared

    def _keyword(self, keyword: str, value: Any, place: str) -> Any:
        if keyword in self._inner:
            return self._inner[keyword](value, f"{place}/{keyword}")
        if keyword in _PLAIN:
            return _PLAIN[keyword](value, f"{place}/{keyword}")
        raise NotKeptError(f"`{keyword}` at {place} {_reason(keyword)}")

    def _by_name(self, value: Any, place: str) -> dict[str, Any]:
        if not isinstance(value, dict):
            raise ValueError(f"{place} is {_shown(value)}; it must be an object of schemas")  # noqa: TRY004 - as above
        return {name: self.schema(inner, f"{place}/{name}") for name, inner in value.items()}

    def _list(self, value: Any, place: str) -> list[Any]:
        if not isinstance(value, list) or not value:
            raise ValueError(f"{place} is {_shown(value)}; it must be a list of schemas")
        return [self.schema(inner, f"{place}/{index}") for index, inner in enumerate(value)]

    def _check_together(self, schema: dict[str, Any], place: str) -> None:
        """Refuse keywords that cannot be kept beside one another."""
        has_free_names = schema.get("additionalProperties", True) is not False or "patternProperties" in schema
        if (count := schema.get("minProperties", 0)) > 1 and has_free_names:
            problem = (
                f"`minProperties` at {place} cannot be kept where properties may have any name, because a name may "
                "come twice; list the properties and send `additionalProperties` false, or leave it out"
            )
            self._refuse(schema, "minProperties", count, NotKeptError(problem))

    def _replace_format(self, schema: dict[str, Any]) -> None:
        """Put other keywords in place of a format that the library keeps only in part."""
        formats = FORMAT_KEYWORDS if self._refuse is exactly else WIDER_FORMAT_KEYWORDS
        if (keywords := formats.get(schema.get("format", ""))) is None:
            return
        del schema["format"]
        if keywords.keys().isdisjoint(schema):
            schema |= keywords
        else:
            schema["allOf"] = [*schema.get("allOf", []), keywords]


def _has_no_effect(keyword: str, schema: dict[str, Any]) -> bool:
    match keyword:
        case "uniqueItems":
            return schema[keyword] is False
        case "additionalItems":
            return not isinstance(schema.get("items"), list)
        case _:
            is_extension = keyword.startswith("x-") and keyword != "x-guidance"
            return is_extension or keyword in _ANNOTATIONS


def _list_literal_names(schema: dict[str, Any]) -> None:
    """List the names of patterns that are but names: the library would ask for one of them once more."""
    patterns = schema.get("patternProperties", {})
    names = {pattern: names_of_pattern(pattern) for pattern in patterns}
    for pattern in [each for each in patterns if names[each]]:
        inner = patterns.pop(pattern)
        listed = schema.setdefault("properties", {})
        for name in names[pattern]:
            listed[name] = {"allOf": [listed[name], inner]} if name in listed else inner
    if not patterns:
        schema.pop("patternProperties", None)


def _reason(keyword: str) -> str:
    if keyword == "x-guidance":
        return "is an option of the grammar library, which the server sets; leave it out"
    if keyword in _NOT_KEPT:
        return f"is not supported: {_NOT_KEPT[keyword]}"
    return "is not a keyword of JSON Schema 2020-12; correct it, or leave it out"


def _plain(allowed: str, holds: Callable[[Any], bool]) -> Callable[[Any, str], Any]:
    """Return the check of a keyword without schemas inside; `allowed` says what it must be."""
    return _kept(allowed, holds, lambda _: True)


def _kept(allowed: str, holds: Callable[[Any], bool], is_kept: Callable[[Any], bool]) -> Callable[[Any, str], Any]:
    """Return the same for a keyword of whose right values not all are kept."""

    def check(value: Any, place: str) -> Any:
        problem = f"{place} is {_shown(value)}; it must be {allowed}"
        if not holds(value):
            raise ValueError(problem)
        if not is_kept(value):
            raise NotKeptError(problem)
        return value

    return check


def _count(value: Any, place: str) -> int:
    """Return a count as a whole number: the library takes no `2.0`."""
    if not _is_number(value) or value < 0 or value != int(value):
        raise ValueError(f"{place} is {_shown(value)}; it must be a whole number of at least 0")
    return int(value)


def _enum(value: Any, place: str) -> list[Any]:
    if not isinstance(value, list) or not value:
        raise ValueError(f"{place} is {_shown(value)}; it must be a list of at least one value")
    if len(value) > MAX_ENUM:
        raise NotKeptError(f"{place} has {len(value)} values; at most {MAX_ENUM} are kept; leave it out")
    return value


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _are_texts(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(each, str) for each in value)


def _is_type(value: Any) -> bool:
    names = value if isinstance(value, list) and value else [value]
    return all(isinstance(name, str) and name in _TYPES for name in names)


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


_TEXT = _plain("a text", _is_text)
_NUMBER = _plain("a number", _is_number)

_PLAIN: dict[str, Callable[[Any, str], Any]] = {
    "$schema": _kept("a draft of JSON Schema", _is_text, lambda value: "json-schema.org/" in value),
    "$ref": _plain(
        "a place in the same schema, such as `#/$defs/name`: nothing is fetched",
        lambda value: isinstance(value, str) and value.startswith("#"),
    ),
    "type": _plain("one of " + ", ".join(f"`{name}`" for name in _TYPES) + ", or a list of them", _is_type),
    "enum": _enum,
    "const": lambda value, _: value,
    "required": _plain("a list of texts", _are_texts),
    "minProperties": _count,
    "maxProperties": _count,
    "minItems": _count,
    "maxItems": _count,
    "minLength": _count,
    "maxLength": _count,
    "pattern": _TEXT,
    "format": _kept(
        "one of " + ", ".join(f"`{name}`" for name in _FORMATS) + "; leave it out",
        _is_text,
        lambda value: value in _FORMATS,
    ),
    "minimum": _NUMBER,
    "maximum": _NUMBER,
    "exclusiveMinimum": _NUMBER,
    "exclusiveMaximum": _NUMBER,
    "multipleOf": _kept(
        f"a number in (0, {MAX_MULTIPLE_OF}]",
        lambda value: _is_number(value) and value > 0,
        lambda value: value <= MAX_MULTIPLE_OF,
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
