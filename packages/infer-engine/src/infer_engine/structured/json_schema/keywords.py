"""`prepare_schema`: reads a JSON Schema (draft 2020-12) keyword by keyword. Compiles nothing.

A schema that is taken exactly is kept exactly: every text that is generated validates, and what the grammar library
ignores, or keeps only in part, is refused by name, as is a word that no specification has: it may be a slip. Otherwise
what is kept is kept exactly, and what cannot be is wider (`json_schema_widening`). Documentation of every keyword is in
`docs/structured-output.md`.
"""

import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Annotated, Any, Literal, TypedDict, get_args

import msgspec
from msgspec import Meta

from infer_engine.structured.errors import NotKeptError
from infer_engine.structured.json_schema.checks import check_schema
from infer_engine.structured.json_schema.dialects import respelled
from infer_engine.structured.json_schema.ends import check_ends
from infer_engine.structured.json_schema.formats import FORMAT_KEYWORDS, LIBRARY_FORMATS, WIDER_FORMAT_KEYWORDS
from infer_engine.structured.json_schema.patterns import names_of_pattern
from infer_engine.structured.json_schema.places import LISTS, MAPS, SINGLE
from infer_engine.structured.json_schema.references import localized
from infer_engine.structured.json_schema.widening import (
    MAX_ENUM,
    MAX_LENGTH,
    Refuse,
    are_exact,
    exactly,
    is_exact,
    whatever_it_is,
)

MAX_DEPTH = 64
MAX_MULTIPLE_OF = 10_000
"""The compilation of a larger one takes seconds, of a million half a minute."""

_ANNOTATIONS = frozenset(
    (
        *("title", "description", "default", "examples", "example", "deprecated", "readOnly", "writeOnly"),
        *("discriminator", "$comment", "contentEncoding", "contentMediaType", "contentSchema", "externalDocs", "xml"),
    )
)
_FORMATS = sorted(LIBRARY_FORMATS | FORMAT_KEYWORDS.keys())
_BOUNDS = ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum")


def prepare_schema(schema: Any, refuse: Refuse = exactly) -> Any:
    """Return a copy of `schema` that means the same, or a little less, to the grammar library.

    What cannot be kept goes to `refuse`, which raises, or makes the copy wider. Takes time in proportion to the size of
    the schema.

    Raises:
        ValueError: it is no JSON Schema, nothing matches it, or it cannot be kept, and `refuse` does not take it as
            whatever it is; the message names the keyword and where it stands.
    """
    _check_depth(schema)
    schema = localized(schema, _SHAPES.keys() | _NOT_KEPT.keys())
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
            **dict.fromkeys(SINGLE, self.schema),
            **dict.fromkeys(LISTS, self._list),
            **dict.fromkeys(MAPS, self._by_name),
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
        is_plain = _is(schema, _SHAPE)
        for keyword, value in schema.items():
            if _has_no_effect(keyword, schema):
                continue
            try:
                prepared[keyword] = self._keyword(keyword, value, place, is_plain=is_plain)
            except ValueError as error:
                self._refuse(prepared, keyword, value, error)
        self._check_rules(prepared, place)
        self._replace_format(prepared)
        _list_literal_names(prepared)
        return prepared

    def _keyword(self, keyword: str, value: Any, place: str, *, is_plain: bool) -> Any:
        """Return the value of a keyword of a schema at `place`, in which all shapes may be known to be right."""
        if keyword in self._inner:
            return self._inner[keyword](value, f"{place}/{keyword}")
        if keyword not in _SHAPES:
            raise NotKeptError(f"`{keyword}` at {place} {_reason(keyword)}")
        if is_plain:
            return value
        allowed, shape = _SHAPES[keyword]
        if keyword in _COUNTED and isinstance(value, float) and value.is_integer():  # the library takes no `2.0`
            value = int(value)
        if not _is(value, shape):
            raise ValueError(f"{place}/{keyword} is {_shown(value)}; it must be {allowed}")
        return value

    def _by_name(self, value: Any, place: str) -> dict[str, Any]:
        if not isinstance(value, dict):
            raise ValueError(f"{place} is {_shown(value)}; it must be an object of schemas")  # noqa: TRY004 - as above
        return {name: self.schema(inner, f"{place}/{name}") for name, inner in value.items()}

    def _list(self, value: Any, place: str) -> list[Any]:
        if not isinstance(value, list) or not value:
            raise ValueError(f"{place} is {_shown(value)}; it must be a list of schemas")
        return [self.schema(inner, f"{place}/{index}") for index, inner in enumerate(value)]

    def _check_rules(self, schema: dict[str, Any], place: str) -> None:
        """Refuse right values of keywords that cannot be kept, alone or next to other keywords."""
        for keyword in [word for word in schema if word in _RULES]:
            for is_kept, problem in _RULES[keyword]:
                if keyword in schema and not is_kept(value := schema[keyword]):
                    message = f"{place}/{keyword} is {_shown(value)}; it {problem}"
                    self._refuse(schema, keyword, value, NotKeptError(message))
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


_TYPES = Literal["string", "number", "integer", "boolean", "null", "array", "object"]
_TEXT = ("a text", str)
_PLACE = Annotated[str, Meta(pattern="^#")]
_COUNT = ("a whole number of at least 0", Annotated[int, Meta(ge=0)])
_NUMBER = ("a number", Annotated[float, Meta(ge=-sys.float_info.max, le=sys.float_info.max)])
_COUNTED = ("minProperties", "maxProperties", "minItems", "maxItems", "minLength", "maxLength")
_SHAPES: dict[str, tuple[str, Any]] = {
    "$schema": _TEXT,
    "$ref": ("a place in the same schema, such as `#/$defs/name`: nothing is fetched", _PLACE),
    "type": (
        "one of " + ", ".join(f"`{name}`" for name in get_args(_TYPES)) + ", or a list of them",
        _TYPES | Annotated[list[_TYPES], Meta(min_length=1)],
    ),
    "enum": ("a list of at least one value", Annotated[list[Any], Meta(min_length=1)]),
    "const": ("a value", Any),
    "required": ("a list of texts", list[str]),
    "pattern": _TEXT,
    "format": _TEXT,
    **dict.fromkeys(_COUNTED, _COUNT),
    **dict.fromkeys(_BOUNDS, _NUMBER),
    "multipleOf": ("a number above 0", Annotated[float, Meta(gt=0)]),
}
"""What the value of a keyword without schemas inside must be, in words and as a type."""

_SHAPE = TypedDict("_SHAPE", {keyword: shape for keyword, (_, shape) in _SHAPES.items()}, total=False)  # type: ignore[misc]  # the same for all
_IS_EXACT = (is_exact, "is beyond 2**53, and not exact there; leave it out")
_ARE_EXACT = (are_exact, "has a number beyond 2**53, and not exact there; send it as a text")
_IS_SHORT = (lambda value: value <= MAX_LENGTH, f"must be at most {MAX_LENGTH}; leave it out")
_RULES: dict[str, Sequence[tuple[Callable[[Any], bool], str]]] = {
    "$schema": [(lambda value: "json-schema.org/" in value, "must be a draft of JSON Schema")],
    "format": [(_FORMATS.__contains__, f"must be one of {', '.join(f'`{name}`' for name in _FORMATS)}; leave it out")],
    "const": [_ARE_EXACT],
    "enum": [(lambda value: len(value) <= MAX_ENUM, f"has more than {MAX_ENUM} values; leave it out"), _ARE_EXACT],
    "multipleOf": [(lambda value: value <= MAX_MULTIPLE_OF, f"must be at most {MAX_MULTIPLE_OF}; leave it out")],
    **dict.fromkeys(_BOUNDS, (_IS_EXACT,)),
    **dict.fromkeys(("minLength", "maxLength"), (_IS_SHORT,)),
}
"""Which of the right values of a keyword are kept, and how others are refused."""

_INSTEAD = {
    "use `anyOf` with one object for each case": (
        *("if", "then", "else", "dependentRequired", "dependentSchemas", "dependencies"),
    ),
    "leave it out, and check the result": ("uniqueItems", "contains", "minContains", "maxContains"),
    "use `$ref`": ("$dynamicRef", "$dynamicAnchor", "$recursiveRef", "$recursiveAnchor"),
    "say what is allowed instead": ("not",),
    "use `patternProperties` with `additionalProperties` false": ("propertyNames",),
    "use `additionalProperties`": ("unevaluatedProperties",),
    "use `items` after `prefixItems`": ("unevaluatedItems", "additionalItems"),
    "leave it out": ("$vocabulary",),
    'use `"type": [..., "null"]`': ("nullable",),
}
_NOT_KEPT = {keyword: advice for advice, keywords in _INSTEAD.items() for keyword in keywords}


def _is(value: Any, shape: Any) -> bool:
    try:
        msgspec.convert(value, shape)
    except msgspec.ValidationError:
        return False
    return True


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
