"""Kernels that are launched once and run again on the same memory, as a CUDA graph does, in Triton's interpreter."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

from triton.runtime.interpreter import InterpretedFunction

Launch = Callable[[], None]
"""Runs a kernel with the very arguments that it had: tensors are read and written where they lie."""


class RecordedLaunches:
    """The kernels that were launched inside `record_launches`, in order."""

    def __init__(self) -> None:
        """Start without launches."""
        self._launches: list[Launch] = []

    def __len__(self) -> int:
        """The number of launches."""
        return len(self._launches)

    def run(self, launch: Launch) -> None:
        """Run a kernel, and remember it."""
        self._launches.append(launch)
        launch()

    def replay(self) -> None:
        """Run all kernels again, in order; operations of PyTorch that lay between them are left out."""
        for launch in self._launches:
            launch()


@contextmanager
def intercept_launches(run: Callable[[Launch], None]) -> Iterator[None]:
    """Pass every kernel that is launched inside to `run`, which runs it, and may keep it."""
    original = InterpretedFunction.run

    def intercept(kernel: "InterpretedFunction[Any]", *args: Any, **kwargs: Any) -> None:
        run(lambda: original(kernel, *args, **kwargs))

    with patch.object(InterpretedFunction, "run", intercept):
        yield


@contextmanager
def record_launches() -> Iterator[RecordedLaunches]:
    """Record the kernels that are launched inside, which also run."""
    recorded = RecordedLaunches()
    with intercept_launches(recorded.run):
        yield recorded
