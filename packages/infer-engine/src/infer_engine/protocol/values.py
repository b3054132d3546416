"""Checks of the types and ranges of single values."""

import re
from collections.abc import Callable
from fractions import Fraction
from typing import Any, Literal

ValueCode = Literal[
    "invalid_value",
    "integer_below_min_value",
    "integer_above_max_value",
    "decimal_below_min_value",
    "decimal_above_max_value",
    "array_above_max_length",
    "empty_string",
    "string_above_max_length",
    "conflicting_fields",
    "invalid_json_schema",
    "invalid_function_parameters",
    "invalid_grammar",
]
"""The kinds of wrong values. OpenAI's names, but for fields that exclude or need each other, and for grammars."""
Check = Callable[[str, object], object]
"""Takes a field's name and value; raises a `ValueError` that names both and what is allowed. The result is unused."""
MAX_TIMEOUT_S = 365 * 24 * 3600
"""A year: a longer time is a typing error, and may overflow a clock."""
TIMEOUT = f"a finite number of seconds, %s and at most {MAX_TIMEOUT_S}"
_BYTE_UNITS = {"": 1, "B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "KIB": 2**10, "MIB": 2**20, "GIB": 2**30}


class WrongValueError(ValueError):
    """A field has a value of the right type that it may not have.

    Attributes:
        code: the kind of error, for a program to read.
    """

    def __init__(self, message: str, *, code: ValueCode = "invalid_value") -> None:
        """Take the message, which begins with the name of the field."""
        super().__init__(message)
        self.code = code


def refusal(name: str, value: object, allowed: str, *, code: ValueCode = "invalid_value") -> WrongValueError:
    """Return the error for field `name` with `value`; `allowed` says what is allowed."""
    return WrongValueError(f"`{name}` is {value!r}; it must be {allowed}.", code=code)


def too_many(name: str, count: int, noun: str, *, most: int) -> WrongValueError:
    """Return the error for field `name`, a list with so many of `noun`."""
    return WrongValueError(f"`{name}` has {count} {noun}; it must have at most {most}.", code="array_above_max_length")


def bound_code(kind: Literal["integer", "decimal"], value: float, *, low: float) -> ValueCode:
    """Return the code for a number outside its range, which begins at `low`; a NaN is on no side of it."""
    if value != value:
        return "invalid_value"
    if kind == "integer":
        return "integer_below_min_value" if value < low else "integer_above_max_value"
    return "decimal_below_min_value" if value <= low else "decimal_above_max_value"


def optional(check: Check) -> Check:
    """Return `check` for a field that may also be None."""

    def check_if_set(name: str, value: object) -> None:
        if value is not None:
            check(name, value)

    return check_if_set


def one_of(*choices: str) -> Check:
    """Return the check for one of `choices`."""
    allowed = "one of " + ", ".join(f"`{choice}`" for choice in choices)
    return _require(allowed, lambda value: isinstance(value, str) and value in choices)


def text(pattern: str, allowed: str) -> Check:
    """Return the check for a string that matches the whole `pattern`; `allowed` describes it."""
    compiled = re.compile(pattern, re.DOTALL)
    return _require(allowed, lambda value: isinstance(value, str) and bool(compiled.fullmatch(value)))


def switch() -> Check:
    """Return the check for a boolean."""
    return _require("True or False", lambda value: isinstance(value, bool))


def whole_number(allowed: str, holds: Callable[[int], bool], *, low: int | None = None) -> Check:
    """Return the check for an integer with `holds(value)`; `allowed` describes it, from `low` on if it is a range."""
    return _number(int, "integer", allowed, holds, low)


def number(allowed: str, holds: Callable[[float], bool], *, low: float | None = None) -> Check:
    """Return the check for a number with `holds(value)`; `allowed` describes it, from `low` on if it is a range.

    `holds` must compare with both ends of a range, so that it is false for NaN and infinities.
    """
    return _number((int, float), "decimal", allowed, holds, low)


def _number(
    types: type | tuple[type, ...],
    kind: Literal["integer", "decimal"],
    allowed: str,
    holds: Callable[[Any], bool],
    low: float | None,
) -> Check:
    def check(name: str, value: Any) -> None:
        is_number = isinstance(value, types) and not isinstance(value, bool)
        if not is_number or not holds(value):
            code = bound_code(kind, value, low=low) if is_number and low is not None else "invalid_value"
            raise refusal(name, value, allowed, code=code)

    return check


def _require(allowed: str, holds: Callable[[object], bool]) -> Check:
    def check(name: str, value: object) -> None:
        if not holds(value):
            raise refusal(name, value, allowed)

    return check


def parse_bytes(name: str, value: object) -> int:
    """Return `value` in bytes: a number of bytes, or one with a unit such as `512MiB`, `4GiB`, `1.5GB`.

    Raises:
        ValueError: not a positive amount of memory; the message names the field `name`.
    """
    num_bytes = _whole_bytes(value)
    if num_bytes < 1:
        raise refusal(name, value, "a positive number of bytes, or one with a unit such as `512MiB` or `4GiB`")
    return num_bytes


def _whole_bytes(value: object) -> int:
    """Return `value` in bytes, or 0 if it is not an amount of memory."""
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    # The number of digits is limited, because converting very many of them takes very long.
    pattern = r"\s*([0-9]{1,30}(?:\.[0-9]{1,30})?)\s*([A-Za-z]*)\s*"
    match = re.fullmatch(pattern, value) if isinstance(value, str) else None
    return int(Fraction(match[1]) * _BYTE_UNITS.get(match[2].upper(), 0)) if match else 0


COUNT = whole_number("a whole number of at least 1", lambda value: value >= 1)
