"""Activations on a CPU, by whole rows.

A thread's share of an elementwise operation ends in a remainder that is computed without vector instructions, to other
bits. Where a share ends inside a row, which of the row's columns those are depends on the other rows.

    columns      | vectors            |rest|          two threads, three rows: the second row's rest depends on the
    thread 0     ==========================           split, the others' do not; so the first two rows make a part of
    thread 0, 1  =============|============           their own, which is split between rows, and the third another
    thread 1     ==========================
"""

from collections.abc import Callable
from functools import partial
from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional

from infer_kernels.dispatch import wants_grad

GatedActivation = Literal["silu", "gelu_tanh"]

_ALLOCATING: dict[GatedActivation, Callable[[Tensor], Tensor]] = {
    "silu": functional.silu,
    "gelu_tanh": partial(functional.gelu, approximate="tanh"),
}
_INTO: dict[GatedActivation, Callable[..., Tensor]] = {
    "silu": torch.ops.aten.silu.out,
    "gelu_tanh": partial(torch.ops.aten.gelu.out, approximate="tanh"),
}
_SERIAL: dict[GatedActivation, int] = {"silu": 2**15, "gelu_tanh": 2**14}
"""Elements up to which PyTorch leaves an activation to one thread."""


def activate_rows(x: Tensor, activation: GatedActivation) -> Tensor:
    """The activation of x [rows, width]; a row's bits do not depend on the others. Differentiable."""
    threads = torch.get_num_threads()
    if threads == 1 or x.numel() <= _SERIAL[activation] or wants_grad(x):
        return _ALLOCATING[activation](x)
    parts = _parts_in_whole_rows(*x.shape, activation=activation, threads=threads)
    if len(parts) == 1:
        return _ALLOCATING[activation](x)
    activated = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    for part in parts:
        _INTO[activation](x[part], out=activated[part])
    return activated


def _parts_in_whole_rows(
    rows: int, width: int, *, activation: GatedActivation, threads: int
) -> list[tuple[slice, slice]]:
    """Rows and columns of parts of [rows, width] of which every thread's share is whole rows: mostly one part."""
    widest = _SERIAL[activation]
    parts = []
    for column in range(0, width, widest):
        columns = slice(column, min(column + widest, width))
        row = 0
        while row < rows:
            taken = rows - row
            while taken % _num_shares(taken * (columns.stop - column), activation, threads):
                taken -= 1
            parts.append((slice(row, row + taken), columns))
            row += taken
    return parts


def _num_shares(elements: int, activation: GatedActivation, threads: int) -> int:
    """Among how many threads PyTorch divides so many elements, evenly: gelu among all once it divides at all."""
    serial = _SERIAL[activation]
    if elements <= serial:
        return 1
    return threads if activation == "gelu_tanh" else min(threads, -(-elements // serial))
