"""How long a device computes a step when it never waits for the host. Knows passes and clocks; knows no model.

Where the host is the slower one, a device idles between two kernels, and events around a step measure the host:

    host      |launch |launch |launch |            host      |launch |launch |launch |     wait      |
    device        |k1|    |k2|    |k3|             device    |spin .........................|k1|k2|k3|
                  ^ an event      ^ an event                                                ^        ^

So in some steps, which count for nothing else, the device spins before the first kernel until all of the forward pass
is queued. From the end of the spin to the tokens' arrival on the host, there is only what the device does, and at the
end some ten microseconds in which the host takes notice.
"""

import time
from typing import Any, Protocol

import torch

from infer_engine.core.request import Request
from infer_engine.core.step_executor import ComputedPass, StepRunner
from infer_engine.sampling.sampler_output import SamplerOutput
from infer_engine.scheduling import Schedule

CYCLES_PER_S = 2.0e9
"""About the fastest clock of a GPU's multiprocessors; with a slower one a spin is longer."""


class DeviceTimer(Protocol):
    """Holds a device back, then counts what it does."""

    def start(self, held_s: float) -> None:
        """Let the device do nothing for about `held_s` seconds; time begins after that."""

    def is_held(self) -> bool:
        """Whether time has not begun yet."""

    def stop(self) -> float:
        """Return the seconds since time began, once everything queued until now is done."""


class CudaTimer:
    """Implements `DeviceTimer` by events on the current stream."""

    def __init__(self) -> None:
        """Needs a GPU."""
        self._started, self._stopped = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]  # torch has no types for it

    def start(self, held_s: float) -> None:
        """Queue a kernel that spins, and an event."""
        torch.cuda._sleep(int(held_s * CYCLES_PER_S))  # type: ignore[no-untyped-call]  # noqa: SLF001 - no public name
        self._started.record()

    def is_held(self) -> bool:
        """Whether the kernel still spins."""
        return not self._started.query()  # type: ignore[no-untyped-call]  # torch has no types for it

    def stop(self) -> float:
        """Queue an event and wait for it."""
        self._stopped.record()
        self._stopped.synchronize()
        milliseconds: float = self._started.elapsed_time(self._stopped)
        return milliseconds / 1e3


class WallTimer:
    """Implements `DeviceTimer` where the host is the device: nothing is held back."""

    def __init__(self) -> None:
        """Time has not begun."""
        self._started_s = 0.0

    def start(self, held_s: float) -> None:
        """Begin at once."""
        del held_s
        self._started_s = time.perf_counter()

    def is_held(self) -> bool:
        """As if."""
        return True

    def stop(self) -> float:
        """Return the seconds since `start`."""
        return time.perf_counter() - self._started_s


def timer_of(device: torch.device) -> DeviceTimer:
    """Return what times `device`."""
    return CudaTimer() if device.type == "cuda" else WallTimer()


class HeldRunner:
    """Computes as `inner` does. Implements `infer_engine.core.step_executor.StepRunner`."""

    def __init__(self, inner: StepRunner, timer: DeviceTimer) -> None:
        """Hold nothing back yet."""
        self._inner = inner
        self._timer = timer
        self._held_s: float | None = None
        self._was_held = False
        self._device_s: float | None = None

    def hold(self, seconds: float) -> None:
        """Hold the device back before the next pass, longer than its launches take: for `seconds`."""
        self._held_s = seconds

    def take_device_s(self) -> float | None:
        """Return the seconds that the device took for the pass that was held back.

        None where it was not held long enough: its launches took longer, or one of them waited for the device.
        """
        device_s, self._device_s = self._device_s, None
        return device_s

    def forward(self, schedule: Schedule) -> ComputedPass:
        """Compute the pass."""
        if self._held_s is None:
            return self._inner.forward(schedule)
        self._timer.start(self._held_s)
        computed = self._inner.forward(schedule)
        self._was_held = self._timer.is_held()
        return computed

    def sample(self, logits: Any, requests: list[Request]) -> SamplerOutput:
        """Choose as `inner` does."""
        choices = self._inner.sample(logits, requests)
        if self._held_s is not None:
            seconds = self._timer.stop()
            self._device_s = seconds if self._was_held else None
            self._held_s = None
        return choices

    def probe(self) -> None:
        """Probe `inner`."""
        self._inner.probe()
