"""`RecordingCapture`: captures steps as a CUDA graph does, where Triton's kernels are interpreted.

A recorded step is the kernels of Triton and the operators of PyTorch that a step launches, with the memory that they
read and write. A replay runs them again on the same memory. Whatever the host computed while it was recorded is in it:
numbers, grids, sizes. What a CUDA graph cannot hold is refused.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from infer_engine.model_runner.graphs.graph_capture import Replay
from infer_proofs.kernels.interpreted.recorded_launches import intercept_launches

_aten = torch.ops.aten
REFUSED = {
    _aten.item.default: "reads a number from the device",
    _aten.is_nonzero.default: "reads a number from the device",
    _aten._local_scalar_dense.default: "reads a number from the device",  # noqa: SLF001 - its only name
    _aten.nonzero.default: "waits for the size of its result",
    _aten.masked_select.default: "waits for the size of its result",
    _aten._pin_memory.default: "allocates memory on the host",  # noqa: SLF001 - as above
}
"""What a CUDA graph cannot hold, by operator."""


BYTES_PER_LAUNCH = 64
"""Bytes of made-up memory that a recorded launch takes."""


class NotRecordableError(RuntimeError):
    """A step does what no CUDA graph can hold."""


class RecordingCapture:
    """Records steps. Implements `GraphCapture`.

    Attributes:
        num_replays: replays so far.
        num_launches: kernels and operators of each recorded step, in order.
    """

    def __init__(self, device: torch.device | None = None) -> None:
        """Record on the CPU, whatever `device` says."""
        del device
        self.num_replays = 0
        self.num_launches: list[int] = []

    def capture(self, compute: Callable[[], None]) -> Replay:
        """Record what `compute` launches; unlike a GPU, this computes it.

        Raises:
            NotRecordableError: it cannot be recorded.
        """
        calls: list[Callable[[], None]] = []
        with _recording(calls):
            compute()
        self.num_launches.append(len(calls))

        def replay() -> None:
            self.num_replays += 1
            with torch.inference_mode():
                for call in calls:
                    call()

        return replay

    def wait(self, timeout_s: float) -> bool:
        """Return that all is computed."""
        del timeout_s
        return True

    def free_bytes(self) -> int:
        """Return made-up memory, of which each recording takes a part."""
        return (1 << 30) - BYTES_PER_LAUNCH * sum(self.num_launches)


@contextmanager
def _recording(calls: list[Callable[[], None]]) -> Iterator[None]:
    """Append a function that runs it again for each kernel and operator that is launched inside."""
    recorder = _Recorder(calls)
    with intercept_launches(recorder.run_kernel), recorder:
        yield


class _Recorder(TorchDispatchMode):  # type: ignore[no-untyped-call]  # torch has no types for it
    """Records PyTorch's operators. Their results keep their memory, as in a graph."""

    def __init__(self, calls: list[Callable[[], None]]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # as above
        self._calls = calls
        self._is_inside_kernel = False  # the interpreter computes with tensors too

    def run_kernel(self, launch: Callable[[], None]) -> None:
        """Run a kernel, and record it."""
        self._calls.append(launch)
        self._is_inside_kernel = True
        launch()
        self._is_inside_kernel = False

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        del types
        kwargs = kwargs or {}
        if not self._is_inside_kernel and func in REFUSED:
            raise NotRecordableError(f"`{func}` {REFUSED[func]}")
        results = func(*args, **kwargs)
        if not self._is_inside_kernel and not func.is_view and "empty" not in func.__name__:
            self._calls.append(lambda: _run_again(func, args, kwargs, results))
        return results


def _run_again(func: Any, args: Sequence[Any], kwargs: dict[str, Any], results: Any) -> None:
    """Run an operator again, with its results where they were."""
    found = func(*args, **kwargs)
    several = isinstance(results, tuple | list)
    for kept, fresh in zip(results, found, strict=True) if several else [(results, found)]:
        if isinstance(kept, Tensor) and kept.data_ptr() != fresh.data_ptr():
            kept.copy_(fresh)
        elif hasattr(fresh, "wait"):  # of a collective, whose tensors are changed in place
            fresh.wait()
