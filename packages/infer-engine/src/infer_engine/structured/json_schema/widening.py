"""The fate of a keyword that cannot be kept: it is refused, or the schema becomes wider where it stands.

    refuse(schema, keyword, value, error)      `schema` is the prepared copy; the other keywords are in it

Wider means: all that matched the schema still does. Only what the keyword says is lost, and what another one says that
depends on it. The grammar library reads float64 and counts in int64: a number that is not exact there becomes one near.
"""

import math
from collections.abc import Callable, Iterator
from itertools import combinations
from typing import Any

from infer_engine.structured.errors import NotKeptError
from infer_engine.structured.json_schema.patterns import repaired_pattern

MAX_LENGTH = 16_000
"""A bounded string takes a lexer state for every character, and a generation has 20,000 of them."""

MAX_INT64 = 2**63 - 1
MAX_ENUM = 5_000
"""Values of a list that may be objects, which take 0.4 s to compile."""
MAX_RANGES = 100
"""Ranges around numbers that are not exact; with more of them, one stands for all."""

MAX_PATTERNS_IN_PAIRS = 8
MAX_ALTERNATIVES_ALONE = 16
LIMITS = ("min", "max", "exclusive", "multiple", "pattern", "format")
"""Beginnings of keywords that say the least."""
_ALTERNATIVES = ("anyOf", "oneOf")

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
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    match keyword:
        case "properties" | "patternProperties":  # their names would become additional ones
            schema["additionalProperties"] = True
        case "prefixItems":  # so would its items
            schema["items"] = True
        case "enum" | "const":
            values = value if keyword == "enum" else [value]
            if isinstance(values, list) and values:
                _require(schema, schema_of_any(values))
        case "minimum" | "exclusiveMinimum" if is_number and (bound := exact_below(value)) is not None:
            schema[keyword] = bound
        case "maximum" | "exclusiveMaximum" if is_number and (bound := exact_above(value)) is not None:
            schema[keyword] = bound
        case "minProperties" if isinstance(value, int) and value > 1:
            schema[keyword] = 1
        case "minLength" if isinstance(value, int) and value > MAX_LENGTH:
            schema[keyword] = MAX_LENGTH
        case "pattern" if (repaired := repaired_pattern(value)) is not None:
            schema[keyword] = repaired
        case "oneOf" if isinstance(value, list) and value:
            _require(schema, {"anyOf": value})
        case _:
            pass


def variants(schema: dict[str, Any], keyword: str) -> Iterator[dict[str, Any]]:
    """Return copies of `schema` that are wider in what `keyword` says, one after another; the last has it no more."""
    value = schema[keyword]
    if keyword == "patternProperties":
        yield from _with_patterns_joined(schema, value)
    if keyword in _ALTERNATIVES:
        yield from _with_fewer_limits(schema, keyword)
    if keyword == "allOf":
        for index, each in enumerate(value):
            for wider in _less_limited(each):
                yield schema | {keyword: [*value[:index], wider, *value[index + 1 :]]}
        for index in range(len(value)):
            yield schema | {keyword: value[:index] + value[index + 1 :]}
    for _ in range(2):  # some keywords are left with less, and go then
        if keyword in schema:
            schema = dict(schema)
            _widen(schema, keyword, schema[keyword])
            yield schema
    yield {word: inner for word, inner in schema.items() if word != keyword}


def _with_patterns_joined(schema: dict[str, Any], patterns: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Return copies of `schema` where names match one of two patterns, or of all, and their values either's schema."""
    pairs = combinations(patterns, 2) if len(patterns) <= MAX_PATTERNS_IN_PAIRS else ()
    for joined in (*pairs, tuple(patterns)):
        others = {pattern: inner for pattern, inner in patterns.items() if pattern not in joined}
        either = {"anyOf": [patterns[pattern] for pattern in joined]}
        yield schema | {"patternProperties": others | {"|".join(joined): either}}


def _less_limited(schema: Any) -> Iterator[dict[str, Any]]:
    """Return copies of `schema` with fewer limits, of its own or of its alternatives."""
    if isinstance(schema, dict):
        if (wider := _without_limits(schema)) != schema:
            yield wider
        for keyword in _ALTERNATIVES:
            if keyword in schema:
                yield from _with_fewer_limits(schema, keyword)


def _with_fewer_limits(schema: dict[str, Any], keyword: str) -> Iterator[dict[str, Any]]:
    """Return copies of `schema` where one of the alternatives under `keyword` is without its limits, or all are."""
    given = schema[keyword]
    without = [_without_limits(each) if isinstance(each, dict) else each for each in given]
    changed = [index for index, each in enumerate(without) if each != given[index]]
    lists = [[*given[:index], without[index], *given[index + 1 :]] for index in changed[:MAX_ALTERNATIVES_ALONE]]
    for alternatives in [*lists, without] if changed else []:
        wider = schema | {keyword: alternatives}
        if keyword == "oneOf":  # a value may match more of them now
            _widen(wider, keyword, alternatives)
        yield wider


def _without_limits(schema: dict[str, Any]) -> dict[str, Any]:
    """Return `schema` without its limits, but with its `patternProperties`, whose names would be additional ones."""
    return {word: value for word, value in schema.items() if word == "patternProperties" or not word.startswith(LIMITS)}


def _require(schema: dict[str, Any], other: dict[str, Any]) -> None:
    """Let `schema` also ask for what `other` does."""
    if other.keys() != {"type"}:
        schema["allOf"] = [*schema.get("allOf", []), other]
    else:
        schema.setdefault("type", other["type"])


def is_exact(number: float) -> bool:
    """Return whether `number` is the same to the library."""
    return number == MAX_INT64 or (abs(number) < MAX_INT64 and float(number) == number)


def are_exact(value: Any) -> bool:
    """Return whether all numbers in `value` are."""
    left = [value]
    while left:
        each = left.pop()
        if isinstance(each, dict | list):
            left.extend(each.values() if isinstance(each, dict) else each)
        elif isinstance(each, int | float) and not is_exact(each):
            return False
    return True


def exact_above(number: float) -> int | None:
    """Return the least exact number from `number` on, where numbers are whole; None if there is none."""
    if not abs(number) <= MAX_INT64:
        return None
    nearest = float(number)
    return min(MAX_INT64, int(nearest if nearest >= number else math.nextafter(nearest, math.inf)))


def exact_below(number: float) -> int | None:
    """Return the greatest exact number up to `number`."""
    return None if (above := exact_above(-number)) is None else -above


def schema_of_any(values: list[Any]) -> dict[str, Any]:
    """Return a schema that all of `values` match, and others if there are too many, or some are not exact."""
    kept = [value for value in values if are_exact(value)] if len(values) <= MAX_ENUM else []
    near = [_schema_near(value) for value in values if not (kept and are_exact(value))]
    different = {tuple(each.items()): each for each in near}
    ranges = [each for each in different.values() if "minimum" in each]
    if len(ranges) > MAX_RANGES:
        least, most = min(each["minimum"] for each in ranges), max(each["maximum"] for each in ranges)
        ranges = [{"type": "integer", "minimum": least, "maximum": most}]
    others = [each for each in different.values() if "minimum" not in each]
    options = [*([{"enum": kept}] if kept else []), *ranges, *others]
    if all(option.keys() == {"type"} for option in options):
        return {"type": sorted(option["type"] for option in options)}
    return {"anyOf": options}


def _schema_near(value: Any) -> dict[str, Any]:
    match value:
        case None:
            return {"type": "null"}
        case bool():
            return {"type": "boolean"}
        case str():
            return {"type": "string"}
        case list():
            return {"type": "array"}
        case dict():
            return {"type": "object"}
        case int() if not is_exact(value) and (least := exact_below(value)) and (most := exact_above(value)):
            return {"type": "integer", "minimum": least, "maximum": most}
        case _:
            return {"type": "number"}
