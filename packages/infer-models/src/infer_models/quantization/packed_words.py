"""Numbers of four and eight bits inside words of 32, the first in the lowest bits.

word [31 .. 28][27 .. 24] .. [7 .. 4][3 .. 0]
          7        6     ..     1       0        numbers of four bits
"""

import torch
from torch import Tensor

from infer_kernels.integers import cdiv

BITS = (4, 8)
"""Bits of a number, of those that are read."""


def words_of(count: int, bits: int) -> int:
    """Return how many words hold `count` numbers."""
    return cdiv(count * bits, 32)


def bytes_of(words: Tensor, count: int, bits: int) -> Tensor:
    """Return the bytes, uint8 [rows, bytes], that hold the first `count` numbers of words int32 [rows, words].

    Of four bits, they are as a `QuantizedWeight` has them: two numbers a byte, the first in the lower half.
    """
    # Flat first: of a single column the last stride may be any, and such a tensor has no bytes to view.
    data = words.contiguous().view(-1).view(torch.uint8).view(len(words), -1)
    return data[:, : cdiv(count * bits, 8)].contiguous()


def unpack(words: Tensor, count: int, bits: int) -> Tensor:
    """Return the first `count` numbers of each row of words int32 [rows, words], as uint8 [rows, count]."""
    data = bytes_of(words, count, bits)
    if bits == 8:
        return data
    return torch.stack([data & 15, data >> 4], dim=-1).flatten(-2)[:, :count].contiguous()


def signed(codes: Tensor) -> Tensor:
    """Return codes uint8, of which 128 is zero, as int8."""
    return (codes ^ 128).view(torch.int8)
