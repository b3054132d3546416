"""`OpCall`: one call of an op, which can be launched, and compared with the op's reference on any device."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Protocol

import torch
from torch import Tensor

import infer_kernels
from infer_kernels import reference
from infer_kernels.checks.closeness import assert_within_roundings

EQUAL = partial(torch.testing.assert_close, rtol=0.0, atol=0.0, equal_nan=True)
"""Raises `AssertionError` unless two tensors are equal."""


class Fill(Protocol):
    """Makes a tensor of floating-point numbers on the host: `draw` of `self_check`, or `unfilled`."""

    def __call__(self, *shape: int, dtype: torch.dtype, seed: int = 0) -> Tensor:
        """Return a tensor of `shape`."""
        ...


def unfilled(*shape: int, dtype: torch.dtype, seed: int = 0) -> Tensor:
    """Return a tensor whose numbers nobody reads: that of a launch which is compiled only."""
    del seed
    return torch.empty(*shape, dtype=dtype)


def copy_to(tensor: Tensor, device: torch.device) -> Tensor:
    """Return a copy of `tensor` on `device`, with its strides."""
    return tensor.to(device, copy=True)


def call_with(op: Callable[..., Any], *tensors: Tensor, **options: Any) -> Any:
    """Call `op` with its arguments as they are."""
    return op(*tensors, **options)


@dataclass(frozen=True, slots=True, kw_only=True)
class OpCall:
    """One call.

    Attributes:
        op: name of the public function; its reference is called `{op}_reference`.
        label: dtype, shape and mode.
        tensors: the tensors, on the host.
        options: the other arguments, by name.
        rows: how many of the first tensors hold rows of tokens.
        written: which of the tensors the op writes; the reference returns changed copies after its other results.
        call: calls its first argument, the op, with the tensors and the options, and returns results.
        call_reference: likewise with the reference; None: as `call`.
        close: raises `AssertionError` unless (actual, expected), one result of each, agree.
    """

    op: str
    label: str
    tensors: tuple[Tensor, ...]
    options: Mapping[str, Any] = field(default_factory=dict)
    rows: int = 0
    written: tuple[int, ...] = ()
    call: Callable[..., Any] = call_with
    call_reference: Callable[..., Any] | None = None
    close: Callable[[Tensor, Tensor], None] = assert_within_roundings

    def __str__(self) -> str:
        """The op and its label."""
        return f"{self.op}, {self.label}"

    def launch(self) -> object:
        """Call the op where the tensors are, and return what it returns."""
        return self.call(getattr(infer_kernels, self.op), *self.tensors, **self.options)

    def compare(self, device: torch.device, *, place_rows: Callable[[Tensor, torch.device], Tensor] = copy_to) -> None:
        """Call the op on `device` and the reference on the host, and compare.

        Args:
            device: the device of the op.
            place_rows: copies rows of tokens to the device.

        Raises:
            AssertionError: results differ.
        """
        moved = [
            (place_rows if index < self.rows else copy_to)(tensor, device) for index, tensor in enumerate(self.tensors)
        ]
        actual = _listed(self.call(getattr(infer_kernels, self.op), *moved, **self.options))
        actual += tuple(moved[index] for index in self.written)
        call_reference = self.call if self.call_reference is None else self.call_reference
        expected = _listed(call_reference(getattr(reference, f"{self.op}_reference"), *self.tensors, **self.options))
        for own, right in zip(actual, expected, strict=True):
            self.close(own.cpu(), right)


def _listed(returned: Tensor | tuple[Tensor, ...] | None) -> tuple[Tensor, ...]:
    if returned is None:
        return ()
    return (returned,) if isinstance(returned, Tensor) else tuple(returned)
