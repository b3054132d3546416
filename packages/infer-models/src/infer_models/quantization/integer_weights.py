"""Weights of codes without a sign, as checkpoints pack them in words: kept as they are, or dequantized."""

from dataclasses import replace

import torch
from torch import Tensor

from infer_kernels import QuantizedWeight
from infer_kernels.quantization import INT4_ZERO
from infer_models.quantization.packed_words import BITS
from infer_models.quantization.storage import Storage

_BYTE = BITS[-1]


def integer_storage(bits: int, *, group_size: int | None, has_zeros: bool) -> Storage | None:
    """Return how codes of so many bits are kept; None for groups of int8 with a code of zero of their own."""
    if bits == _BYTE and group_size is not None and has_zeros:
        return None
    return Storage(encoding="int8" if bits == _BYTE else "int4", group_size=group_size, has_zeros=has_zeros)


def integer_weight(
    data: Tensor, *, bits: int, scales: Tensor, zeros: Tensor | None, in_features: int, group_size: int | None
) -> QuantizedWeight:
    """Return a weight of codes without a sign.

    Args:
        data: uint8 [out_features, bytes], see `packed_words.bytes_of`.
        bits: of a code.
        scales: fp32 [out_features, groups].
        zeros: uint8 [out_features, groups], the code of zero; None: half of all codes are below it.
        in_features: inputs.
        group_size: inputs that share a scale; None: all.
    """
    if bits == _BYTE:
        data = _signed(data)
        zeros = None if zeros is None else _signed(zeros)
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
        weight: with scales and zeros of the groups that `groups` chooses among.
        groups: int64 [in_features], the group of each input.
    """
    ones = torch.ones(weight.out_features, 1)
    codes = replace(weight, scales=ones, zeros=None, group_size=weight.in_features).dequantize()
    if weight.zeros is not None:
        zero = INT4_ZERO if weight.encoding == "int4" else 0
        codes += (zero - weight.zeros.float()).index_select(1, groups)
    return codes.mul_(weight.scales.index_select(1, groups))


def _signed(codes: Tensor) -> Tensor:
    """Return codes uint8, of which 128 is zero, as int8."""
    return (codes ^ 128).view(torch.int8)
