"""Checks of the types and ranges of single values."""

import re
from collections.abc import Callable

Check = Callable[[str, object], object]
"""Takes a field's name and value; raises a `ValueError` that names both and what is allowed. The result is unused."""


def refusal(name: str, value: object, allowed: str) -> ValueError:
    """Return the error for field `name` with `value`; `allowed` says what is allowed."""
    return ValueError(f"`{name}` is {value!r}; it must be {allowed}.")


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


def whole_number(allowed: str, holds: Callable[[int], bool]) -> Check:
    """Return the check for an integer with `holds(value)`; `allowed` describes it."""
    return _require(allowed, lambda value: isinstance(value, int) and not isinstance(value, bool) and holds(value))


def number(allowed: str, holds: Callable[[float], bool]) -> Check:
    """Return the check for a number with `holds(value)`; `allowed` describes it.

    `holds` must compare with both ends of a range, so that it is false for NaN and infinities.
    """
    return _require(
        allowed, lambda value: isinstance(value, int | float) and not isinstance(value, bool) and holds(value)
    )


def _require(allowed: str, holds: Callable[[object], bool]) -> Check:
    def check(name: str, value: object) -> None:
        if not holds(value):
            raise refusal(name, value, allowed)

    return check
