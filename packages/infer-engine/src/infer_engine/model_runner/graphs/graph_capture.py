"""`GraphCapture`: records what a device computes, to be replayed by one launch."""

import time
from collections.abc import Callable
from typing import Protocol

import torch

Replay = Callable[[], None]
"""Queues the recorded work on the current stream."""


class GraphCapture(Protocol):
    """Records work that has been computed before, so that nothing is compiled or loaded while it is recorded."""

    def capture(self, compute: Callable[[], None]) -> Replay:
        """Record what `compute` launches, without computing it.

        Raises:
            RuntimeError: it does something that cannot be recorded, such as waiting for the device.
        """

    def wait(self, timeout_s: float) -> bool:
        """Wait until the device has computed all that was queued; return False if it takes longer."""

    def free_bytes(self) -> int:
        """Release what PyTorch caches, and return the bytes of the device that nothing has taken.

        What computes a step before it is captured stays in that cache, and is no memory of the capture.
        """


class CUDAGraphCapture:
    """Records CUDA graphs, which share the memory of what they compute. Implements `GraphCapture`."""

    def __init__(self, device: torch.device) -> None:
        """Record on `device`, which must be the thread's current one."""
        self._device = device
        self._memory = torch.cuda.graph_pool_handle()
        self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]  # torch has no types for it

    def capture(self, compute: Callable[[], None]) -> Replay:
        """Record a CUDA graph on a stream of its own; other threads may use the device meanwhile."""
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self._memory, stream=self._stream, capture_error_mode="thread_local"):
            compute()
        return graph.replay

    def wait(self, timeout_s: float) -> bool:
        """Poll an event: a wait for a kernel that never ends would never end."""
        event = torch.cuda.Event()  # type: ignore[no-untyped-call]  # torch has no types for it
        event.record()
        deadline = time.monotonic() + timeout_s
        while not event.query():  # type: ignore[no-untyped-call]  # as above
            if time.monotonic() > deadline:
                return False
            time.sleep(0.0005)
        return True

    def free_bytes(self) -> int:
        """Ask the driver, which also counts what it takes itself for a graph."""
        torch.cuda.synchronize(self._device)
        torch.cuda.empty_cache()
        return torch.cuda.mem_get_info(self._device)[0]
