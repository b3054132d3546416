"""Dense layers whose inputs are quantized too, as our C++ kernels compute them: whole numbers and a scale for each row.

    q = round(x / s)
    y[o] = s * sum over groups of scale[o, g] * sum over the group of (code[o, i] - zero[o, g]) * q[i]

127 s is the largest magnitude of the row's ordinary inputs, so that these have eight bits. The outliers of a row are
the few inputs that are more than 4 times as large as the mean magnitude of the others, or, where those are not few, 8,
16 or 32 times; they have up to 23 bits. Real models have such inputs, 30 to 5,000 times as large as the others: one
scale for all would round the others away.

Sums of a group are whole numbers, and exact; what outliers have beyond eight bits is summed four inputs at a time, and
added after all groups. A row's scale depends on the row alone, and so do its bits. A row with NaN or infinity becomes
NaN. The error of `q` is about 0.7% of the root mean square of the ordinary inputs.
"""

import torch
from torch import Tensor

from infer_kernels.quantization.quantized_weight import QuantizedWeight

OUTLIER_FACTOR = 4.0
"""How many times the mean magnitude of the other inputs of a row an outlier exceeds, unless so many would."""
_PASSES = 4
"""That look for outliers; each leaves out what the one before has found."""
_MOST = 127.0
_MOST_CODE = 2.0**22
"""The largest code of an outlier."""
_MOST_SUM = 2.0**23 - 2.0**17
"""Most that the magnitudes of a row's codes sum to, so that sums of products fit 32 bits."""
_LEAST_SCALE = 2.0**-126
"""Below it 1 / scale may be infinite: such a row counts as zeros."""


def most_outliers(in_features: int) -> int:
    """Return how many inputs of a row may have more than eight bits."""
    return max(8, in_features // 32)


def quantize_rows_reference(x: Tensor) -> tuple[Tensor, Tensor]:
    """Return codes int32 and scales fp32 [..., 1] of x [..., in_features]."""
    numbers = x.float()
    is_finite = numbers.isfinite().all(dim=-1, keepdim=True)
    magnitudes = torch.where(is_finite, numbers, 0.0).abs()
    scales = torch.maximum(_largest_ordinary(magnitudes) / _MOST, magnitudes.amax(dim=-1, keepdim=True) / _MOST_CODE)
    scales = torch.maximum(scales, magnitudes.sum(dim=-1, keepdim=True) / _MOST_SUM)
    scales = torch.where(scales < _LEAST_SCALE, 0.0, scales)
    inverse = torch.where(scales > 0, 1.0 / scales, 0.0)
    codes = torch.where(is_finite, numbers, 0.0).mul(inverse).clamp(-_MOST_CODE, _MOST_CODE).round().to(torch.int32)
    return codes, torch.where(is_finite, scales, torch.nan)


def _largest_ordinary(magnitudes: Tensor) -> Tensor:
    """Return the largest of each row of `magnitudes` [..., in_features] without outliers, [..., 1]."""
    in_features = magnitudes.shape[-1]
    ordinary = torch.ones_like(magnitudes, dtype=torch.bool)
    largest = magnitudes.amax(dim=-1, keepdim=True)
    factors = torch.full_like(largest, OUTLIER_FACTOR)
    for _ in range(_PASSES):
        bound = factors * (magnitudes * ordinary).sum(dim=-1, keepdim=True) / ordinary.sum(dim=-1, keepdim=True)
        fewer = magnitudes <= bound
        is_few = in_features - fewer.sum(dim=-1, keepdim=True) <= most_outliers(in_features)
        is_taken = (bound < largest) & is_few
        factors = torch.where(is_few, factors, 2 * factors)
        ordinary = torch.where(is_taken, fewer, ordinary)
        largest = (magnitudes * ordinary).amax(dim=-1, keepdim=True)
    return largest


def linear_quantized_rows_reference(x: Tensor, weight: QuantizedWeight, bias: Tensor | None = None) -> Tensor:
    """The formula in fp64, rounded to the dtype of x [..., in_features]; returns [..., out_features]."""
    codes, scales = quantize_rows_reference(x)
    product = codes.double() @ weight.dequantize().double().T * scales.double()
    return (product if bias is None else product + bias.double()).to(x.dtype)
