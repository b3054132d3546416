"""Judgements of a benchmark: limits, the most or the least that a number may be, and findings, which are in words."""

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from infer_bench.results import Columns


@dataclass(frozen=True, slots=True, kw_only=True)
class Limit:
    """A number, with its unit, that must not be above `most`, nor below `least`."""

    what: str
    value: float
    unit: str = ""
    most: float | None = None
    least: float | None = None

    @property
    def holds(self) -> bool:
        """Whether the number is within its limits; one that is NaN is not."""
        is_enough = self.least is None or self.value >= self.least
        return is_enough and (self.most is None or self.value <= self.most)

    def __str__(self) -> str:
        """Say it in one sentence."""
        unit = f" {self.unit}" if self.unit else ""
        wanted = [f"at least {self.least:g}{unit}"] if self.least is not None else []
        wanted += [f"at most {self.most:g}{unit}"] if self.most is not None else []
        return f"{self.what}: {self.value:.4g}{unit}, wanted {' and '.join(wanted)}"


def judge(limits: Sequence[Limit]) -> int:
    """Print the limits that are missed; return the exit code: 1 if there are some."""
    missed = [limit for limit in limits if not limit.holds]
    for limit in missed:
        print(f"limit missed: {limit}", file=sys.stderr)
    return 1 if missed else 0


class Finding(NamedTuple):
    """A line of a table: what was looked at, the result, what it must be and whether it is; any will do if empty."""

    what: str
    found: str
    wanted: str = ""
    holds: bool | None = None


FINDINGS: Columns = {
    "what": "{what}",
    "found": "{found}",
    "wanted": "{wanted}",
    "holds": lambda row: {None: "", True: "yes", False: "**no**"}[row["holds"]],
}
"""Columns of the table of findings, as dictionaries."""
