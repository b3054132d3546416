"""`rowwise`: functions of PyTorch that give a row the same bits in every batch."""

from collections.abc import Callable

import torch
from torch import Tensor

from infer_kernels.dispatch import wants_grad


def rowwise(function: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    """Return an elementwise `function` of x [rows, ...], on a CPU row by row.

    PyTorch computes the remainder of a thread's share without vector instructions, to other bits of an exponential;
    where the share ends depends on the other rows. Sums, products and square roots have the same bits either way.
    """
    if not x.is_cpu or len(x) <= 1 or wants_grad(x):
        return function(x)
    return torch.stack([function(row) for row in x])
