"""Judgements of a benchmark: limits, the most or the least that a number may be, and findings, which are in words."""

import sys
from collections.abc import Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True, kw_only=True)
class Limit:
    """A number that must not be above `most`, nor below `least`.

    Attributes:
        what: it is, with where it was found.
        value: that was measured.
        unit: unit of all three numbers.
        most: None: no upper limit.
        least: None: no lower limit.
    """

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


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """A line of a table of findings.

    Attributes:
        what: what was measured or compared.
        found: the result, with its unit.
        wanted: what the result must be; empty if any result will do.
        holds: whether the result is as wanted; None if any result will do.
    """

    what: str = field(kw_only=False)
    found: str = field(kw_only=False)
    wanted: str = ""
    holds: bool | None = None
