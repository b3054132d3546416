"""Dense layers whose inputs are quantized too, as our C++ kernels compute them: eight bits with a scale for each row.

    s = max |x| / 127 of a row,  q = round(x / s)
    y[o] = s * sum over groups of scale[o, g] * (sum over the group of (code[o, i] - zero[o, g]) * q[i])

Sums of a group are whole numbers, and exact. A row's scale depends on the row alone, and so do its bits. A row with NaN
or infinity becomes NaN. The error of `q` is about 1% of the row's largest input divided by the root of their number.
"""

import torch
from torch import Tensor

from infer_kernels.quantization.quantized_weight import QuantizedWeight

_MOST = 127.0
_LEAST_SCALE = 2.0**-126
"""Below it 1 / scale may be infinite: such a row counts as zeros."""


def quantize_rows_reference(x: Tensor) -> tuple[Tensor, Tensor]:
    """Return codes int8 and scales fp32 [..., 1] of x [..., in_features]."""
    numbers = x.float()
    scales = numbers.abs().amax(dim=-1, keepdim=True) / _MOST
    is_finite = scales.isfinite()
    scales = torch.where(scales < _LEAST_SCALE, 0.0, scales)
    inverse = torch.where(is_finite & (scales > 0), 1.0 / scales, 0.0)
    codes = torch.where(is_finite, numbers, 0.0).mul(inverse).clamp(-_MOST, _MOST).round().to(torch.int8)
    return codes, torch.where(is_finite, scales, torch.nan)


def linear_quantized_rows_reference(x: Tensor, weight: QuantizedWeight, bias: Tensor | None = None) -> Tensor:
    """The formula in fp64, rounded to the dtype of x [..., in_features]; returns [..., out_features]."""
    codes, scales = quantize_rows_reference(x)
    product = codes.double() @ weight.dequantize().double().T * scales.double()
    return (product if bias is None else product + bias.double()).to(x.dtype)
