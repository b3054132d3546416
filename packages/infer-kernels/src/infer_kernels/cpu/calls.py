"""Runs kernels of the library, one by one or recorded into a step that is replayed.

A recorded step is a list of kernels and their arguments over fixed memory, as a CUDA graph is on a GPU:

    recording    an op writes its arguments down and computes nothing; what it returns lies in memory of the step
    replay       one C call runs all kernels in one parallel region, with a barrier after each; threads that wait there
                 prefetch weights of the next dense layer

A step has several numbers of rows: that of its tokens, which most kernels compute, and that of its sequences, which
attention does. It is recorded with the most rows of each kind, and replayed with any smaller numbers.
"""

import ctypes
import mmap
import threading
import weakref
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from math import prod
from struct import Struct
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from infer_kernels.cpu.library import Library, library

DTYPES = {torch.float32: "float32", torch.bfloat16: "bfloat16", torch.float16: "float16"}
"""What kernels are compiled for: their libraries."""
_ROWS = Struct("qP")
_CALL = Struct("PPPqq")
_SERIAL_WORK = 1 << 14
"""Elements up to which one thread is faster than the start of several."""


class NotCapturableError(RuntimeError):
    """A step computes something that is no kernel of the library, so that a replay would leave it out."""


class CapturedStep:
    """The kernels of one step, recorded once.

    Attributes:
        max_rows: by kind of rows, those of the recorded batch and the most of a replay.
    """

    def __init__(self, *max_rows: int) -> None:
        """Record nothing yet. A kernel's rows are of the kind that has as many: no two kinds may have the same number.

        Raises:
            ValueError: two kinds have the same number of rows.
        """
        if len(set(max_rows)) < len(max_rows):
            raise ValueError(f"{max_rows} rows cannot be told apart by their number")
        self.max_rows = max_rows
        self._library: Library | None = None  # that of the first kernel, which runs those of all
        self._num_rows = (ctypes.c_int64 * len(max_rows))()
        self._calls: list[tuple[int, bytes, Tensor | None]] = []
        self._table = b""
        self._memory: list[mmap.mmap] = []
        self._free: defaultdict[int, list[mmap.mmap]] = defaultdict(list)

    @contextmanager
    def recording(self) -> Iterator[None]:
        """Record every op of the block that this thread calls.

        Raises:
            NotCapturableError: an op of PyTorch computes something inside.
        """
        if _this_thread.recorded is not None:
            raise RuntimeError("A step is being recorded already.")
        _this_thread.recorded = self
        try:
            with _OnlyViews():  # type: ignore[no-untyped-call]  # torch has no types for it
                yield
        finally:
            _this_thread.recorded = None
        table = []
        upcoming = (0, 0, 0)  # the weights of the next dense layer: address, panels, bytes of each
        for kernel, arguments, panels in reversed(self._calls):
            table.append(_CALL.pack(kernel, _address(arguments), *upcoming))
            if panels is not None:
                upcoming = (panels.data_ptr(), len(panels), panels[0].nbytes)
        self._table = b"".join(reversed(table))

    def replay(self, *num_rows: int) -> None:
        """Compute the step for the first `num_rows` rows of its inputs, a number for each kind of rows.

        Raises:
            ValueError: there are more than were recorded.
        """
        for given, most in zip(num_rows, self.max_rows, strict=True):
            if not 0 <= given <= most:
                raise ValueError(f"`num_rows` is {given}; the step was recorded with {most}")
        self._num_rows[:] = list(num_rows)
        if self._library is None:  # nothing was recorded
            return
        self._library.run_calls(_address(self._table), len(self._calls), torch.get_num_threads())

    def add(self, kernel: str, dtype: torch.dtype | None, rows: int, arguments: bytes, panels: Tensor | None) -> None:
        """Record a call."""
        if rows not in self.max_rows:
            expected = " or ".join(map(str, self.max_rows))
            raise NotCapturableError(f"`{kernel}` has {rows} rows where the step has {expected}")
        counter = ctypes.addressof(self._num_rows) + self.max_rows.index(rows) * ctypes.sizeof(ctypes.c_int64)
        loaded = _library_of(dtype)
        self._library = self._library or loaded
        self._calls.append((loaded.address(kernel), _ROWS.pack(0, counter) + arguments, panels))

    def empty(self, shape: Sequence[int], dtype: torch.dtype) -> Tensor:
        """Return memory of the step, used again for another op when nothing refers to the tensor any longer."""
        size = max(1, prod(shape)) * dtype.itemsize
        free = self._free[size]
        if free:
            pages = free.pop()
        else:
            pages = mmap.mmap(-1, size)
            self._memory.append(pages)
        lent = memoryview(pages)  # lives as long as the tensor's memory does
        weakref.finalize(lent, free.append, pages)
        return torch.frombuffer(lent, dtype=dtype)[: prod(shape)].view(tuple(shape))


class _ThisThread(threading.local):
    """The work of this thread; another engine may compute in another one."""

    recorded: CapturedStep | None = None


_this_thread = _ThisThread()


class _OnlyViews(TorchDispatchMode):  # type: ignore[no-untyped-call]  # torch has no types for it
    """Refuses every op of PyTorch that computes something."""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Return False: hidden from the compiler, the mode would import it, which takes a second and 70 MB."""
        return False

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        del types
        if not func.is_view and func not in _HARMLESS:
            raise NotCapturableError(f"`{func}` is not a kernel of the library")
        return func(*args, **(kwargs or {}))


_HARMLESS: tuple[Callable[..., Any], ...] = (torch.ops.aten.lift_fresh.default, torch.ops.aten.detach.default)


def is_recording() -> bool:
    """Return whether a step is being recorded."""
    return _this_thread.recorded is not None


def empty(shape: Sequence[int], dtype: torch.dtype) -> Tensor:
    """Return memory for a result: of the step that is being recorded, or fresh."""
    recorded = _this_thread.recorded
    return torch.empty(tuple(shape), dtype=dtype) if recorded is None else recorded.empty(shape, dtype)


def run(
    kernel: str, dtype: torch.dtype | None, rows: int, arguments: bytes, *, work: int, panels: Tensor | None = None
) -> None:
    """Run or record `kernel` for `dtype`.

    Args:
        kernel: its name.
        dtype: dtype of the numbers; None: the kernel is the same for all.
        rows: rows of the batch.
        arguments: the rest of its struct.
        work: elements that it reads; few are left to one thread.
        panels: panels of a dense layer's weight, which threads of a recorded step prefetch while they wait.
    """
    if _this_thread.recorded is not None:
        _this_thread.recorded.add(kernel, dtype, rows, arguments, panels)
        return
    if rows == 0:
        return
    loaded = _library_of(dtype)
    threads = 1 if work <= _SERIAL_WORK else torch.get_num_threads()
    loaded.run_call(loaded.address(kernel), _ROWS.pack(rows, 0) + arguments, threads)


def ask(function: str, arguments: bytes) -> int:
    """Return what a C function of a struct says, a whole number that is the same in all libraries."""
    return _library_of(None).ask(function, arguments)


def _library_of(dtype: torch.dtype | None) -> Library:
    """Return the library of `dtype`, which the caller knows to be there."""
    loaded = library(None if dtype is None else DTYPES[dtype])
    assert loaded is not None
    return loaded


def _address(data: bytes) -> int:
    return ctypes.cast(ctypes.c_char_p(data), ctypes.c_void_p).value or 0
