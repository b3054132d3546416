"""Quantizes one weight as GPTQ, AWQ and FP8 store it, for tests: the tensors of its layer and the numbers in them.

Slow and plain, number by number where that is clearest: the fast decoders are compared with them.
"""

from collections.abc import Mapping

import torch
from torch import Tensor

Packed = tuple[Mapping[str, Tensor], Tensor]
"""The tensors of a layer by the ends of their names, and the numbers fp32 [out_features, in_features]."""
_FP8_MAX = 448.0
_AWQ_ORDER = (0, 2, 4, 6, 1, 3, 5, 7)
"""The output in each place of a word."""


def quantize_gptq(
    weight: Tensor,
    *,
    bits: int = 4,
    group_size: int = 32,
    is_symmetric: bool = True,
    version: int = 1,
    is_reordered: bool = False,
    has_groups: bool = True,
) -> Packed:
    """Return `qweight`, `qzeros`, `scales` and `g_idx` of a weight [out_features, in_features].

    Args:
        weight: weight in fp32.
        bits: bits of a code.
        group_size: inputs that share a scale; -1: all.
        is_symmetric: the code of zero is the middle one.
        version: version of the format; the first stores zeros less 1.
        is_reordered: groups are of inputs that were drawn at random.
        has_groups: `g_idx` is there.
    """
    in_features = weight.shape[1]
    groups = torch.arange(in_features) // (in_features if group_size == -1 else group_size)
    if is_reordered:
        groups = groups[torch.randperm(in_features, generator=torch.Generator().manual_seed(in_features))]
    codes, scales, zeros = _round(weight, groups, bits=bits, is_symmetric=is_symmetric)
    worth = (codes - zeros[:, groups]) * scales[:, groups]
    tensors = {
        "qweight": _pack_words(codes, bits).T.contiguous(),
        "qzeros": _pack_words(zeros.T - (1 if version == 1 else 0), bits),
        "scales": scales.T.half(),
    }
    return tensors | ({"g_idx": groups.int()} if has_groups else {}), worth


def quantize_awq(weight: Tensor, *, group_size: int = 32, has_zeros: bool = True) -> Packed:
    """Return `qweight`, `qzeros` and `scales` of a weight [out_features, in_features], whose outputs divide by eight.

    Args:
        weight: weight in fp32.
        group_size: inputs that share a scale; -1: all.
        has_zeros: each scale has a code of zero beside it; else it is 8.
    """
    in_features = weight.shape[1]
    groups = torch.arange(in_features) // (in_features if group_size == -1 else group_size)
    codes, scales, zeros = _round(weight, groups, bits=4, is_symmetric=not has_zeros)
    worth = (codes - zeros[:, groups]) * scales[:, groups]
    tensors = {
        "qweight": _pack_words(_interleave(codes.T), 4),
        "qzeros": _pack_words(_interleave(zeros.T), 4),
        "scales": scales.T.half(),
    }
    return tensors, worth


def quantize_fp8_blocks(weight: Tensor, *, block: tuple[int, int]) -> Packed:
    """Return `weight` and `weight_scale_inv` of a weight [out_features, in_features]; edges may have partial blocks."""
    rows, columns = (torch.arange(size) // part for size, part in zip(weight.shape, block, strict=True))
    scales = torch.zeros(int(rows[-1]) + 1, int(columns[-1]) + 1)
    for row in range(scales.shape[0]):
        for column in range(scales.shape[1]):
            scales[row, column] = weight[rows == row][:, columns == column].abs().max() / _FP8_MAX
    by_number = scales[rows][:, columns]
    values = (weight / by_number).clamp(-_FP8_MAX, _FP8_MAX).to(torch.float8_e4m3fn)
    return {"weight": values, "weight_scale_inv": scales}, values.float() * by_number


def quantize_fp8_tensor(weight: Tensor, *, name: str = "weight_scale") -> Packed:
    """Return `weight`, its scale called `name`, and the scale of inputs of a static scheme."""
    scale = weight.abs().max() / _FP8_MAX
    values = (weight / scale).clamp(-_FP8_MAX, _FP8_MAX).to(torch.float8_e4m3fn)
    return {"weight": values, name: scale, "input_scale": torch.tensor(0.5)}, values.float() * scale


def _round(weight: Tensor, groups: Tensor, *, bits: int, is_symmetric: bool) -> tuple[Tensor, Tensor, Tensor]:
    """Return codes [out_features, in_features], scales and zeros [out_features, groups], in fp32.

    The code of zero is at least 1: the first version of GPTQ's format has no other.
    """
    largest = 2**bits - 1
    num_groups = int(groups.max()) + 1
    scales, zeros = torch.zeros(2, weight.shape[0], num_groups)
    for group in range(num_groups):
        numbers = weight[:, groups == group]
        least, most = numbers.amin(1).clamp(max=0.0), numbers.amax(1).clamp(min=0.0)
        if is_symmetric:
            scales[:, group] = numbers.abs().amax(1) * 2 / largest
            zeros[:, group] = 2 ** (bits - 1)
        else:
            scales[:, group] = (most - least) / largest
            zeros[:, group] = (-least / scales[:, group]).round().clamp(1, largest)
    scales = scales.half().float()
    codes = (weight / scales[:, groups] + zeros[:, groups]).round().clamp(0, largest)
    return codes, scales, zeros


def _pack_words(codes: Tensor, bits: int) -> Tensor:
    """Return codes [rows, count] in words int32 [rows, words], the first in the lowest bits."""
    per_word = 32 // bits
    padding = -codes.shape[1] % per_word
    parts = torch.nn.functional.pad(codes.long(), (0, padding)).unfold(1, per_word, per_word)
    words = sum(parts[..., place] << bits * place for place in range(per_word))
    assert isinstance(words, Tensor)
    return torch.where(words >= 2**31, words - 2**32, words).int()


def _interleave(codes: Tensor) -> Tensor:
    """Return codes [rows, outputs] in the order in which AWQ puts them into words."""
    return codes.unfold(1, 8, 8)[..., list(_AWQ_ORDER)].flatten(1)
