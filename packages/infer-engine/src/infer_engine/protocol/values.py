"""Checks of single values: their types and ranges. Knows no field and no conflict between fields."""

import re
from collections.abc import Callable

Check = Callable[[str, object], object]
"""Takes a field's name and its value; raises `ValueError` that names both and what is allowed. The result is unused."""


def refusal(name: str, value: object, allowed: str) -> ValueError:
    """Return the error that says that field `name` may not be `value`, and what it may be."""
    return ValueError(f"`{name}` is {value!r}; it must be {allowed}.")


def optional(check: Check) -> Check:
    """Return `check` for a field that may also be None: left to the engine."""

    def check_if_set(name: str, value: object) -> None:
        if value is not None:
            check(name, value)

    return check_if_set


def one_of(*choices: str) -> Check:
    """Return the check for one of a few words."""
    allowed = "one of " + ", ".join(f"`{choice}`" for choice in choices)
    return _require(allowed, lambda value: isinstance(value, str) and value in choices)


def text(pattern: str, allowed: str) -> Check:
    """Return the check for a string that matches `pattern` from end to end; `allowed` says it in words."""
    compiled = re.compile(pattern, re.DOTALL)
    return _require(allowed, lambda value: isinstance(value, str) and bool(compiled.fullmatch(value)))


def switch() -> Check:
    """Return the check for a boolean."""
    return _require("True or False", lambda value: isinstance(value, bool))


def whole_number(allowed: str, holds: Callable[[int], bool]) -> Check:
    """Return the check for an integer of which `holds`; `allowed` says it in words."""
    return _require(allowed, lambda value: isinstance(value, int) and not isinstance(value, bool) and holds(value))


def number(allowed: str, holds: Callable[[float], bool]) -> Check:
    """Return the check for a number, whole or not, of which `holds`; `allowed` says it in words.

    `holds` compares with both ends of a range, and so is false for NaN and infinities.
    """
    return _require(
        allowed, lambda value: isinstance(value, int | float) and not isinstance(value, bool) and holds(value)
    )


def _require(allowed: str, holds: Callable[[object], bool]) -> Check:
    def check(name: str, value: object) -> None:
        if not holds(value):
            raise refusal(name, value, allowed)

    return check
