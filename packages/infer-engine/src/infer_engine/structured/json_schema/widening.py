"""What becomes of a keyword that cannot be kept: it is refused, or the schema becomes wider where it stands.

    refuse(schema, keyword, value, error)      `schema` is the prepared copy; the other keywords are in it

Wider means: all that matched the schema still does. Only what the keyword says is lost, and what another one says that
depends on it. A bound beyond what is exact is the exception: it becomes the last number that is.
"""

from collections.abc import Callable
from typing import Any

from infer_engine.structured.errors import NotKeptError
from infer_engine.structured.json_schema.patterns import repaired_pattern

MAX_LENGTH = 16_000
"""A bounded string takes a lexer state for every character, and a generation has 20,000 of them."""
MAX_EXACT = 2**53
"""The library reads numbers as float64."""

Refuse = Callable[[dict[str, Any], str, Any, ValueError], None]


def exactly(_schema: dict[str, Any], _keyword: str, _value: Any, error: ValueError) -> None:
    """Refuse what cannot be kept."""
    raise error


def as_far_as_possible(schema: dict[str, Any], keyword: str, value: Any, error: ValueError) -> None:
    """Make `schema` wider where it is right but cannot be kept; refuse what is no schema."""
    if not isinstance(error, NotKeptError):
        raise error
    _widen(schema, keyword, value)


def whatever_it_is(schema: dict[str, Any], keyword: str, value: Any, _error: ValueError) -> None:
    """Make `schema` wider also where it is wrong."""
    _widen(schema, keyword, value)


def _widen(schema: dict[str, Any], keyword: str, value: Any) -> None:
    """Change `schema` into one that does without `keyword`, whose value is `value`, or with less of it."""
    schema.pop(keyword, None)
    match keyword:
        case "properties" | "patternProperties":  # their names would become additional ones
            schema["additionalProperties"] = True
        case "prefixItems":  # so would its items
            schema["items"] = True
        case "enum" | "const":
            values = [value] if keyword == "const" else value
            if isinstance(values, list) and values and "type" not in schema:
                schema["type"] = sorted({_type_of(each) for each in values})
        case "minimum" | "exclusiveMinimum" if _is_beyond(value) and value < 0:
            schema[keyword] = -MAX_EXACT
        case "maximum" | "exclusiveMaximum" if _is_beyond(value) and value > 0:
            schema[keyword] = MAX_EXACT
        case "minProperties" if isinstance(value, int) and value > 1:
            schema[keyword] = 1
        case "minLength" if isinstance(value, int) and value > MAX_LENGTH:
            schema[keyword] = MAX_LENGTH
        case "pattern" if (repaired := repaired_pattern(value)) is not None:
            schema[keyword] = repaired
        case "oneOf" if isinstance(value, list) and value:
            schema["allOf"] = [*schema.get("allOf", []), {"anyOf": value}]
        case _:
            pass


def _is_beyond(value: Any) -> bool:
    return isinstance(value, int | float) and abs(value) > MAX_EXACT


def _type_of(value: Any) -> str:
    match value:
        case None:
            return "null"
        case bool():
            return "boolean"
        case str():
            return "string"
        case list():
            return "array"
        case dict():
            return "object"
        case _:
            return "number"
