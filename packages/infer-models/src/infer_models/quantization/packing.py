"""Weights of codes of four and eight bits, as checkpoints pack them in words: kept as they are, or dequantized.

A word of 32 bits holds the first number in its lowest bits.

word [31 .. 28][27 .. 24] .. [7 .. 4][3 .. 0]
          7        6     ..     1       0        numbers of four bits
"""

from dataclasses import replace

import torch
from torch import Tensor

from infer_kernels import QuantizedWeight
from infer_kernels.integers import cdiv
from infer_models.stored_format import Storage

BITS = (4, 8)
"""Numbers of bits that are read."""
_BYTE = BITS[-1]


def integer_storage(bits: int, *, group_size: int | None, has_zeros: bool) -> Storage | None:
    """Return the format in memory of codes of so many bits; None for groups of int8 with codes of zero of their own."""
    if bits == _BYTE and group_size is not None and has_zeros:
        return None
    return Storage(encoding="int8" if bits == _BYTE else "int4", group_size=group_size, has_zeros=has_zeros)


def integer_weight(
    data: Tensor, *, bits: int, scales: Tensor, zeros: Tensor | None, in_features: int, group_size: int | None
) -> QuantizedWeight:
    """Return a weight of codes without a sign.

    Args:
        data: uint8 [out_features, bytes], see `bytes_of`.
        bits: bits of a code.
        scales: fp32 [out_features, groups].
        zeros: uint8 [out_features, groups], the code of zero; None: half of all codes are below it.
        in_features: inputs.
        group_size: inputs that share a scale; None: all.
    """
    if bits == _BYTE:
        data = signed(data)
        zeros = None if zeros is None else signed(zeros)
    return QuantizedWeight(
        encoding="int8" if bits == _BYTE else "int4",
        values=data,
        scales=scales,
        zeros=zeros,
        in_features=in_features,
        group_size=group_size or in_features,
    )


def dequantize_by_group(weight: QuantizedWeight, groups: Tensor) -> Tensor:
    """Return the numbers, fp32 [out_features, in_features], of an integer weight whose inputs are in any order.

    Args:
        weight: the weight, whose scales and zeros are those of the groups that `groups` chooses among.
        groups: int64 [in_features], the group of each input.
    """
    ones = torch.ones(weight.out_features, 1)
    codes = replace(weight, scales=ones, zeros=None, group_size=weight.in_features).dequantize()
    if weight.zeros is not None:
        codes += (weight.traits.zero - weight.zeros.float()).index_select(1, groups)
    return codes.mul_(weight.scales.index_select(1, groups))


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
