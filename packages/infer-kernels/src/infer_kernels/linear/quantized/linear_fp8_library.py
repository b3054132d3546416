"""Dense layers in fp8 at many rows: the formula of `linear_fp8`, whose products PyTorch's library computes.

`torch.nn.functional.scaled_mm` with a scale for each row of x and each output. Its kernel for sm_90 has warps of their
own for loads, so that products wait for none; nobody has measured both side by side.

Precision: that of `linear_fp8`; without fast accumulation partial sums are added in fp32. A row's bits may depend on
the number of rows: batch-invariant layers are not computed so.
"""

import torch
from torch import Tensor
from torch.nn import functional

from infer_kernels.gpu import describe_gpu
from infer_kernels.integers import cdiv
from infer_kernels.linear.quantized.linear_fp8 import quantize_rows_fp8_triton
from infer_kernels.quantization.quantized_weight import QuantizedWeight

LEAST_ROWS = 65
"""Least rows of x. At fewer the weight's bytes bound the layer, which `linear_fp8_triton` divides over the device."""
_ROWS_READ = 256
"""The library's kernel for sm_90 reads scales in tiles of up to so many, also where there are fewer
(pytorch/pytorch#133334).
"""


def takes_library_fp8(x: Tensor, weight: QuantizedWeight) -> bool:
    """Whether the library multiplies x [rows, in_features] with `weight`: scales of whole rows, bf16, on sm_90.

    Elsewhere it has no such kernel (sm_100, sm_110, sm_120) or one for old devices (sm_89).
    """
    out_features, in_features = weight.shape
    return (
        len(x) >= LEAST_ROWS
        and x.dtype == torch.bfloat16
        and weight.encoding == "fp8_e4m3"
        and weight.scales.shape[-1] == 1
        and in_features % 16 == 0
        and out_features % _ROWS_READ == 0
        and weight.values.is_contiguous()
        and hasattr(functional, "scaled_mm")
        and describe_gpu(x.device).capability[0] == 9
    )


def linear_fp8_library(x: Tensor, weight: QuantizedWeight, bias: Tensor | None, *, out: Tensor) -> Tensor:
    """Quantize the rows of x and let the library multiply; unchecked but for what the library checks.

    Args:
        x: [rows, in_features] bf16, stride 1 in the last dimension.
        weight: [out_features, in_features], as `takes_library_fp8` says.
        bias: [out_features] bf16, or None.
        out: [rows, out_features] bf16.

    Returns:
        `out`.
    """
    codes, scales = quantize_rows_fp8_triton(x)
    padded = scales.new_zeros(cdiv(len(x), _ROWS_READ) * _ROWS_READ)
    padded[: len(x)] = scales
    by_row = functional.ScalingType.RowWise
    product = functional.scaled_mm(
        codes,
        weight.values.T,
        padded[: len(x), None],
        by_row,
        weight.scales.view(1, -1),
        by_row,
        bias=bias,
        output_dtype=torch.bfloat16,
        use_fast_accum=False,
    )
    return out.copy_(product)
