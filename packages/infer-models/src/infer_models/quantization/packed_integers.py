"""Integers of a few bits in words of 32, the first in the lowest bits."""

import torch
from torch import Tensor


def unpack_words(words: Tensor, bits: int, *, dim: int) -> Tensor:
    """Return the integers of int32 `words`, 32 / `bits` times as many along `dim`, as uint8.

    Args:
        words: int32.
        bits: of an integer: 2, 4 or 8.
        dim: along which a word holds neighbours; -1 or 0 of a matrix.
    """
    shifts = torch.arange(0, 32, bits, device=words.device, dtype=torch.int32)
    dim = dim % words.dim()
    shape = [1] * (words.dim() + 1)
    shape[dim + 1] = len(shifts)
    codes = (words.unsqueeze(dim + 1) >> shifts.view(shape)) & ((1 << bits) - 1)
    return codes.to(torch.uint8).flatten(dim, dim + 1)
