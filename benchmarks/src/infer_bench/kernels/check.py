"""One comparison of an op with what it must give."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

Tensors = tuple[Tensor, ...]
To = Callable[[Tensor], Tensor]
EQUAL = partial(torch.testing.assert_close, rtol=0.0, atol=0.0, equal_nan=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """One comparison.

    Attributes:
        op: the public function.
        label: shape, dtype and mode.
        run: the op's results, of inputs moved by its argument.
        expected: what they must be; given the same mover, where the op is compared with itself.
        close: raises `AssertionError` unless (actual, expected), one result of each, agree.
        of_kernels: promised of the kernels alone, not of the PyTorch paths.
    """

    op: str
    label: str
    run: Callable[[To], Tensors]
    expected: Callable[[To], Tensors]
    close: Callable[[Tensor, Tensor], None]
    of_kernels: bool = False

    def __str__(self) -> str:
        """The op and its label."""
        return f"{self.op}: {self.label}"

    def compare(self, device: torch.device) -> None:
        """Raise `AssertionError` unless results on `device` are right."""
        actual = self.run(lambda tensor: tensor.to(device, copy=True))
        expected = self.expected(lambda tensor: tensor.to(device, copy=True))
        for got, wanted in zip(actual, expected, strict=True):
            self.close(got.cpu(), wanted.cpu())
