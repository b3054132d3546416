"""The Triton interpreter refuses to read or write outside the tensors that a kernel was given.

The addresses of one load or store whose mask is set must lie in one argument: between the first and the last element
that its shape and strides reach. On a GPU a stray address reads or overwrites somebody else's tensor, or ends the
process; the interpreter's addresses are the host's, and it would do the same without a word.

Triton compiles nothing for this: it is Python around the interpreter's own loads, stores and atomics.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from torch import Tensor
from triton.runtime import interpreter
from triton.tools.tensor_descriptor import TensorDescriptor


class OutOfBoundsError(Exception):
    """A kernel reads or writes where none of its arguments lies; names the kernel, the argument and the offset."""


class Extent(NamedTuple):
    """The memory of an argument.

    Attributes:
        name: name of the argument.
        first: address of its first byte.
        end: address behind its last byte.
        shape: its elements.
    """

    name: str
    first: int
    end: int
    shape: tuple[int, ...]


class _Launch(NamedTuple):
    kernel: str
    extents: list[Extent]


_launches: list[_Launch] = []
"""The running kernel is the last: a kernel's hooks may launch another."""


def check_addresses() -> None:
    """Let the interpreter of this process check every address, for the rest of its life; a second call does nothing."""
    builder, executor = interpreter.InterpreterBuilder, interpreter.GridExecutor
    if hasattr(executor, "unchecked_call"):
        return
    load, store = builder.create_masked_load, builder.create_masked_store
    exchange, update = builder.create_atomic_cas, builder.create_atomic_rmw
    execute = executor.__call__

    def create_masked_load(self: Any, ptrs: Any, mask: Any, *rest: Any, **named: Any) -> Any:
        _check("reads", ptrs, mask.data)
        return load(self, ptrs, mask, *rest, **named)

    def create_masked_store(self: Any, ptrs: Any, value: Any, mask: Any, *rest: Any, **named: Any) -> Any:
        _check("writes", ptrs, mask.data)
        return store(self, ptrs, value, mask, *rest, **named)

    def create_atomic_cas(self: Any, ptr: Any, *rest: Any) -> Any:
        _check("exchanges", ptr, np.ones_like(ptr.data, dtype=bool))
        return exchange(self, ptr, *rest)

    def create_atomic_rmw(self: Any, operation: Any, ptr: Any, value: Any, mask: Any, *rest: Any) -> Any:
        _check("updates", ptr, mask.data)
        return update(self, operation, ptr, value, mask, *rest)

    def call(self: Any, *args: Any, **named: Any) -> None:
        arguments = dict(zip(self.arg_names, args, strict=False)) | named
        with _running(self.fn.__name__, arguments):
            execute(self, *args, **named)

    builder.create_masked_load, builder.create_masked_store = create_masked_load, create_masked_store
    builder.create_atomic_cas, builder.create_atomic_rmw = create_atomic_cas, create_atomic_rmw
    executor.unchecked_call, executor.__call__ = execute, call


@contextmanager
def _running(kernel: str, arguments: dict[str, Any]) -> Iterator[None]:
    _launches.append(_Launch(kernel, [extent for name, value in arguments.items() for extent in extents(name, value)]))
    try:
        yield
    finally:
        _launches.pop()


def extents(name: str, value: Any) -> Iterator[Extent]:
    """Yield where an argument of a kernel lies: a tensor, the base of a descriptor, or a tuple of them."""
    if isinstance(value, tuple):
        for index, part in enumerate(value):
            yield from extents(f"{name}[{index}]", part)
    elif isinstance(value, TensorDescriptor):
        yield from extents(name, value.base)
    elif isinstance(value, Tensor) and value.numel():
        last = sum((size - 1) * stride for size, stride in zip(value.shape, value.stride(), strict=True))
        first: int = value.data_ptr()
        yield Extent(name, first, first + (last + 1) * value.itemsize, tuple(value.shape))


def _check(what: str, ptrs: Any, mask: npt.NDArray[np.bool_]) -> None:
    addresses = ptrs.data[mask] if mask.shape == ptrs.data.shape else ptrs.data[np.broadcast_to(mask, ptrs.data.shape)]
    if not addresses.size:
        return
    itemsize = max(1, ptrs.get_element_ty().primitive_bitwidth // 8)
    least, end = int(addresses.min()), int(addresses.max()) + itemsize
    launch = _launches[-1]
    if any(extent.first <= least and end <= extent.end for extent in launch.extents):
        return
    # The argument that is meant holds the most of the addresses, or else lies nearest.
    inside = [int(((addresses >= each.first) & (addresses < each.end)).sum()) for each in launch.extents]
    meant = launch.extents[int(np.argmax(inside))]
    if not any(inside):
        meant = min(launch.extents, key=lambda each: max(each.first - least, least - each.end))
    wrong = addresses[(addresses < meant.first) | (addresses + itemsize > meant.end)]
    element = (int(wrong[0]) - meant.first) // itemsize
    raise OutOfBoundsError(
        f"`{launch.kernel}` {what} element {element} of `{meant.name}` {list(meant.shape)}, which has "
        f"{(meant.end - meant.first) // itemsize} up to its last, in {len(wrong)} of {addresses.size} places"
    )
