"""A launch that is timed, what it must do, and what it should reach."""

from collections.abc import Callable
from typing import Literal, NamedTuple

from infer_bench.kernels.bench import Bench


class Work(NamedTuple):
    """A launch, ready to be queued; bytes that it must read and write, or operations where these are the limit."""

    launch: Callable[[], object]
    moves: int = 0
    computes: int = 0


class Aim(NamedTuple):
    """At least a share of the machine's own rate, at least a rate, or at most a time."""

    value: float
    unit: Literal["share", "TFLOP/s", "us"]


class Case(NamedTuple):
    """Something to time: a public function, its shape and mode, what allocates its tensors, what it should reach."""

    op: str
    label: str
    make: Callable[[Bench], Work]
    aim: Aim | None = None

    def __str__(self) -> str:
        """The op and its label."""
        return f"{self.op}: {self.label}"
