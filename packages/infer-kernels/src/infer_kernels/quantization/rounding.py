"""The rounding of numbers to a `QuantizedWeight`: the scales, and the codes.

int4, for each group of inputs x, whose largest in magnitude is m:

    unit = -m / 8, so that m becomes the lowest of the codes -8 to 7, whatever its sign
    q(f) = round(x / unit / f), for each factor f of a few around 1
    kept is the q(f) with the least sum of w * (x - s * q)^2 over its best s, where w = x^2 + mean(x^2)

The weights w are there because plain squares would cut off a group's largest number to be nearer to the others, and a
few large numbers are what a trained model can spare least.
"""

import torch
from torch import Tensor
from torch.nn import functional

from infer_kernels.integers import cdiv
from infer_kernels.quantization.code_packing import pack_pairs
from infer_kernels.quantization.encodings import INT4_ZERO
from infer_kernels.quantization.quantized_weight import QuantizedWeight

_INT8_MAX = 127.0
_FP8_MAX = 448.0
_INT4_FACTORS = (1.0, 0.9, 0.95, 1.05, 1.1)
_GROUPS_AT_ONCE = 2048
"""Few enough for a core's cache."""


class NotFiniteError(ValueError):
    """A weight that was to be quantized holds NaN or an infinite number."""


def quantize_int8(weight: Tensor) -> QuantizedWeight:
    """Return `weight` [..., out_features, in_features] as int8 with a scale for each row: the largest becomes 127.

    Raises:
        NotFiniteError: a number is NaN or infinite.
    """
    numbers = weight.float()
    scales = _finite(numbers.abs().amax(dim=-1, keepdim=True)) / _INT8_MAX
    values = (numbers / _or_one(scales)).round_().clamp_(-_INT8_MAX, _INT8_MAX).to(torch.int8)
    return QuantizedWeight(
        encoding="int8", values=values, scales=scales, in_features=weight.shape[-1], group_size=weight.shape[-1]
    )


def quantize_fp8(weight: Tensor) -> QuantizedWeight:
    """Return `weight` [..., out_features, in_features] as fp8_e4m3 with a scale for each row: the largest is 448.

    Raises:
        NotFiniteError: a number is NaN or infinite.
    """
    numbers = weight.float()
    scales = _finite(numbers.abs().amax(dim=-1, keepdim=True)) / _FP8_MAX
    values = (numbers / _or_one(scales)).clamp_(-_FP8_MAX, _FP8_MAX).to(torch.float8_e4m3fn)
    return QuantizedWeight(
        encoding="fp8_e4m3", values=values, scales=scales, in_features=weight.shape[-1], group_size=weight.shape[-1]
    )


def quantize_int4(weight: Tensor, *, group_size: int) -> QuantizedWeight:
    """Return `weight` [..., out_features, in_features] as int4 with a scale for each group of inputs, without zeros.

    Raises:
        NotFiniteError: a number is NaN or infinite.
    """
    *rows, in_features = weight.shape
    groups = cdiv(in_features, group_size)
    numbers = functional.pad(weight, (0, groups * group_size - in_features)).view(-1, group_size)
    codes = torch.empty(numbers.shape, dtype=torch.uint8, device=weight.device)
    scales = torch.empty(len(numbers), dtype=torch.float32, device=weight.device)
    at_once = _GROUPS_AT_ONCE if weight.device.type == "cpu" else max(1, len(numbers))
    for start in range(0, len(numbers), at_once):
        part = slice(start, start + at_once)
        codes[part], scales[part] = _round_groups(numbers[part].float())
    return QuantizedWeight(
        encoding="int4",
        values=pack_pairs(codes.view(*rows, -1)[..., :in_features]),
        scales=scales.view(*rows, groups),
        in_features=in_features,
        group_size=group_size,
    )


def _round_groups(numbers: Tensor) -> tuple[Tensor, Tensor]:
    """Return the codes 0 to 15 of groups [groups, group_size], fp32, and their scales [groups].

    Zeros that fill a group up have codes of zero, and no error.
    """
    largest = numbers.gather(-1, numbers.abs().argmax(dim=-1, keepdim=True))
    units = _finite(largest) / -float(INT4_ZERO)
    scaled = numbers / _or_one(units)  # -8 to 8, so that no square overflows or vanishes
    weights = scaled.square()
    weights += weights.mean(dim=-1, keepdim=True)
    weighted = scaled * weights
    codes, scales, most = torch.zeros_like(scaled), torch.ones_like(units), torch.zeros_like(units)
    for factor in _INT4_FACTORS:
        tried = (scaled / factor).round_().clamp_(-INT4_ZERO, INT4_ZERO - 1)
        products = (weighted * tried).sum(dim=-1, keepdim=True)
        best_scale = products / _or_one((tried.square() * weights).sum(dim=-1, keepdim=True))
        explained = products * best_scale  # the weighted squares of `scaled`, less the error
        is_better = explained > most
        codes = torch.where(is_better, tried, codes)
        scales = torch.where(is_better, best_scale, scales)
        most = torch.where(is_better, explained, most)
    return (codes + INT4_ZERO).to(torch.uint8), (scales * units).squeeze(-1)


def _finite(largest: Tensor) -> Tensor:
    """Return the largest numbers of all rows or groups.

    Raises:
        NotFiniteError: one is NaN or infinite.
    """
    if not largest.isfinite().all():
        raise NotFiniteError("`weight` holds numbers that are NaN or infinite, which cannot be quantized")
    return largest


def _or_one(divisors: Tensor) -> Tensor:
    return torch.where(divisors == 0, 1.0, divisors)
