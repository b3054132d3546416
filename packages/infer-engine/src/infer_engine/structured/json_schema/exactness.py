"""Values that are exact in the grammar library, which reads float64 and counts in int64; what is near another one."""

import math
from typing import Any

MAX_INT64 = 2**63 - 1
MAX_ENUM = 5_000
"""Values of a list that may be objects, which take 0.4 s to compile."""
MAX_RANGES = 100
"""Ranges around numbers that are not exact; with more of them, one stands for all."""


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
