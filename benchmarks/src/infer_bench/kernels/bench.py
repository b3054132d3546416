"""Runs and times launches on a GPU, or, without one, compiles them."""

import math
import statistics
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, cached_property

import torch
from torch import Tensor

FLUSHED_BYTES = 2**28
"""More than any GPU's second-level cache holds."""

HEAD_START_CYCLES = 600_000
"""A third of a millisecond in which the device waits, so that the host's launch is there before its turn."""


@dataclass(frozen=True)
class Bench:
    """A device, and whether launches on it are timed or only compiled.

    Attributes:
        device: their tensors' device.
        dry: nothing is computed or timed: launches only compile, and sizes that variants do not depend on are cut.
    """

    device: torch.device
    dry: bool

    def size(self, full: int, dry: int) -> int:
        """`full`, or what it is cut to."""
        return min(full, dry) if self.dry else full

    def random(self, *shape: int, dtype: torch.dtype = torch.bfloat16, scale: float = 1.0) -> Tensor:
        """Normal values."""
        values = torch.empty(shape, dtype=dtype, device=self.device)
        return values if self.dry else values.normal_(0.0, scale)

    def zeros(self, *shape: int, dtype: torch.dtype = torch.int32) -> Tensor:
        """Zeros."""
        return torch.zeros(shape, dtype=dtype, device=self.device)

    def seconds(self, launch: Callable[[], object], *, budget: float = 0.15) -> float:
        """The median time of a launch that finds nothing in the caches; NaN where it is dry.

        Args:
            launch: queues work and does not wait for it.
            budget: seconds that all repetitions may take, of which there are 7 to 50.
        """
        launch()
        if self.dry:
            return math.nan
        once = self._timed(launch, repeats=3)
        repeats = max(7, min(50, int(budget / (once + 3e-4))))
        return self._timed(launch, repeats=repeats)

    def copy_seconds(self, num_bytes: int) -> float:
        """The time of a copy by the device that reads and writes `num_bytes` in all."""
        return _copy_seconds(self, num_bytes)

    @cached_property
    def copy_bandwidth(self) -> float:
        """Bytes per second, read and written, of a copy that is long enough for its start not to count."""
        num_bytes = self.size(2**31, 2**12)
        return num_bytes / self.copy_seconds(num_bytes)

    @cached_property
    def matmul_rate(self) -> float:
        """Operations per second of the library's product of two bf16 matrices of 8192 x 8192."""
        size = self.size(8192, 16)
        a, b = self.random(size, size), self.random(size, size)
        out = torch.empty_like(a)
        return 2 * size**3 / self.seconds(lambda: torch.matmul(a, b, out=out), budget=0.5)

    @cached_property
    def _flushed(self) -> Tensor:
        return torch.empty(FLUSHED_BYTES, dtype=torch.uint8, device=self.device)

    def _timed(self, launch: Callable[[], object], *, repeats: int) -> float:
        events = [[torch.cuda.Event(enable_timing=True) for _ in range(2)] for _ in range(repeats)]  # type: ignore[no-untyped-call]  # torch has no types for it
        for start, stop in events:
            self._flushed.zero_()
            torch.cuda._sleep(HEAD_START_CYCLES)  # type: ignore[no-untyped-call]  # noqa: SLF001 - no public name
            start.record()
            launch()
            stop.record()
        torch.cuda.synchronize()
        milliseconds: list[float] = [start.elapsed_time(stop) for start, stop in events]
        return statistics.median(milliseconds) / 1e3


@cache
def _copy_seconds(bench: Bench, num_bytes: int) -> float:
    source = bench.zeros(num_bytes // 2, dtype=torch.uint8)
    target = torch.empty_like(source)
    return bench.seconds(lambda: target.copy_(source))
