"""What a part of first light gets, and what it returns.

A part is a module with a function `run(place: Place) -> PartReport`. Without a GPU a part is rehearsed: it does the
same on a CPU, with tiny sizes.
"""

import gc
import time
from dataclasses import dataclass, field
from typing import Any

import torch

from infer_bench.ceilings import Ceilings


@dataclass(frozen=True, slots=True)
class Finding:
    """A line of the table of findings; the closing table repeats those that do not hold.

    Attributes:
        what: what was measured or compared.
        found: the result, with its unit.
        wanted: what the result must be; empty if any result will do.
        holds: whether the result is as wanted; None if any result will do.
        is_goal: whether the result is one of the goals for a GPU, which have a table of their own.
    """

    what: str
    found: str
    wanted: str = field(default="", kw_only=True)
    holds: bool | None = field(default=None, kw_only=True)
    is_goal: bool = field(default=False, kw_only=True)


def left_out(what: str, *, is_goal: bool = False) -> Finding:
    """Return the finding for `what` if there was no time for it. It does not hold: nothing was shown."""
    return Finding(what, "left out: no time", wanted="measured", holds=False, is_goal=is_goal)


def failed(what: str, error: BaseException) -> Finding:
    """Return the finding for `what` if it ended with `error`."""
    found = " ".join(f"{type(error).__name__}: {error}".split())[:160]
    return Finding(what, found, wanted="no error", holds=False)


@dataclass(slots=True, kw_only=True)
class PartReport:
    """What a part found: a few short findings for the tables, and all details for the JSON."""

    findings: list[Finding] = field(default_factory=list)
    details: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where a part runs, and how long it may take.

    Attributes:
        device: where everything is computed.
        ceilings: the best rates that this device has shown; None before they are measured.
        deadline_s: the `time.monotonic()` at which the part should end. A part begins nothing after it.
    """

    device: torch.device
    ceilings: Ceilings | None = None
    deadline_s: float

    @property
    def is_rehearsal(self) -> bool:
        """Whether there is no GPU: sizes are tiny, and the numbers mean nothing."""
        return self.device.type != "cuda"

    @property
    def seconds_left(self) -> float:
        """Seconds until the deadline; negative after it."""
        return self.deadline_s - time.monotonic()


def free_memory() -> None:
    """Free the memory of all unreachable objects, on the host and on the device."""
    gc.collect()
    torch.cuda.empty_cache()


def used_memory(device: torch.device) -> int:
    """Return the bytes in use on a GPU, by all processes; 0 on a CPU."""
    if device.type != "cuda":
        return 0
    free, total = torch.cuda.mem_get_info(device)
    return total - free
