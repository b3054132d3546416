"""What each part of first light is given, and what it reports. Measures nothing.

A part is a function of a `Place` that returns a `PartReport`. Without a GPU it is rehearsed: everything runs that a CPU
can run, at tiny sizes, so that what is left to fail on a GPU is the GPU.
"""

import time
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch

from ceilings import Ceilings


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """A line of the table of findings; the closing table repeats those that do not hold.

    Attributes:
        what: was measured or compared.
        found: the result, with its unit.
        wanted: what it was held against; empty if nothing was asked for.
        holds: whether it is what was wanted; None where nothing was.
    """

    what: str
    found: str
    wanted: str = ""
    holds: bool | None = None


@dataclass(slots=True, kw_only=True)
class PartReport:
    """What a part found.

    Attributes:
        findings: for the tables, few and short.
        details: everything else, for the JSON.
    """

    findings: list[Finding] = field(default_factory=list)
    details: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where a part runs, and how long it may.

    Attributes:
        device: of all that is computed.
        ceilings: what that device has shown; None before it was measured.
        deadline_s: the `time.monotonic()` by which the part should have ended; what it has not begun by then it leaves
            out, and says so in its findings.
    """

    device: torch.device
    ceilings: Ceilings | None = None
    deadline_s: float

    @property
    def is_rehearsal(self) -> bool:
        """Whether there is no GPU: sizes are tiny, and numbers say nothing."""
        return self.device.type != "cuda"

    @property
    def seconds_left(self) -> float:
        """Until the deadline; negative after it."""
        return self.deadline_s - time.monotonic()


class Part(Protocol):
    """A part of first light."""

    def __call__(self, place: Place) -> PartReport:
        """Measure. What it raises ends this part alone, and is reported as its failure."""
        ...
