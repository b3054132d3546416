"""Kernels that are launched once and run again on the same memory, as a CUDA graph does, in Triton's interpreter."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

from triton.runtime.interpreter import InterpretedFunction


class RecordedLaunches:
    """Launches with the very arguments that they had: tensors are read and written where they lie."""

    def __init__(self) -> None:
        """Start without launches; `record_launches` adds them."""
        self._launches: list[tuple[InterpretedFunction[Any], tuple[Any, ...], dict[str, Any]]] = []

    def __len__(self) -> int:
        """The number of launches."""
        return len(self._launches)

    def add(self, kernel: "InterpretedFunction[Any]", args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Append a launch."""
        self._launches.append((kernel, args, kwargs))

    def replay(self) -> None:
        """Run all kernels again, in order; operations of PyTorch that lay between them are left out."""
        for kernel, args, kwargs in self._launches:
            kernel.run(*args, **kwargs)


@contextmanager
def record_launches() -> Iterator[RecordedLaunches]:
    """Record the kernels that are launched inside, which also run."""
    recorded = RecordedLaunches()
    run = InterpretedFunction.run

    def record(kernel: "InterpretedFunction[Any]", *args: Any, **kwargs: Any) -> None:
        recorded.add(kernel, args, kwargs)
        run(kernel, *args, **kwargs)

    with patch.object(InterpretedFunction, "run", record):
        yield recorded
