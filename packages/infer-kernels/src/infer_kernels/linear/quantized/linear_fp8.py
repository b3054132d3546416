"""Dense layers in fp8: rows of x become e4m3 with a scale of their own, and meet a weight in e4m3.

    scale[r] = largest |x[r, i]| / 448,  code[r, i] = x[r, i] / scale[r], rounded to the nearest e4m3
    y[r, o] = scale[r] * sum over groups g of w_scale[o, g] * (sum over i in g of code[r, i] * w_code[o, i]) + bias[o]

A dense layer with a weight in fp8 computes so, at any number of rows, where `takes_fp8_products` says that the device
can: from sm_89 on, at twice the rate of bf16. Before, and for experts, `linear_quantized` and `fused_moe_quantized`
keep x as it is, and read half the bytes of a bf16 weight.

Bytes moved: those of the weight at few rows; 1 + itemsize for each element of x to quantize it.

Precision: a division and a rounding for each element of x; a row's scale depends on that row alone. Products of at most
128 inputs are summed by the tensor cores, whose accumulators on Hopper hold fewer bits than fp32; these sums, times
their scales, are summed in fp32. One rounding after scales and bias. A row of zeros has the scale 0 and gives the bias;
one with NaN or infinity gives NaN.
"""

# ruff: noqa: N803 - compile-time arguments of kernels are upper case, as Triton writes them

import torch
from torch import Tensor

from infer_kernels.dispatch import TRITON_DEVICES
from infer_kernels.gpu import describe_gpu
from infer_kernels.integers import cdiv
from infer_kernels.linear.quantized.join_splits import join_splits_triton
from infer_kernels.linear.quantized.quantized_tiles import choose_fp8_tile, choose_splits
from infer_kernels.optional_triton import tl, triton
from infer_kernels.quantization.quantized_weight import QuantizedWeight

_FP8_MAX = 448.0
_MAX = tl.constexpr(_FP8_MAX)
_BLOCK = 1024
"""Elements of a row that a program quantizes together."""


def takes_fp8_products(device: torch.device) -> bool:
    """Whether `linear_fp8_triton` runs there: on CUDA from compute capability 8.9 on."""
    return device.type in TRITON_DEVICES and describe_gpu(device).capability >= (8, 9)


def quantize_rows_fp8_reference(x: Tensor) -> tuple[Tensor, Tensor]:
    """Return codes e4m3 like `x` [rows, in_features], and scales [rows] fp32, by the formula above."""
    numbers = x.float()
    scales = numbers.abs().amax(dim=-1) / _FP8_MAX if x.shape[-1] else numbers.new_zeros(len(x))
    codes = numbers / torch.where(scales == 0, 1.0, scales)[:, None]
    return codes.clamp(-_FP8_MAX, _FP8_MAX).to(torch.float8_e4m3fn), scales


def linear_fp8_reference(x: Tensor, weight: QuantizedWeight, bias: Tensor | None = None) -> Tensor:
    """The layer in plain fp32 PyTorch, rounded once to the dtype of `x` [rows, in_features]."""
    codes, scales = quantize_rows_fp8_reference(x)
    y = codes.float() @ weight.dequantize().T * scales[:, None]
    return (y if bias is None else y + bias.float()).to(x.dtype)


@triton.jit
def _quantize_rows_fp8_kernel(
    codes: tl.tensor,  # [rows, in_features] e4m3
    scales: tl.tensor,  # [rows] fp32
    x: tl.tensor,  # [rows, in_features]
    in_features: tl.tensor,
    x_stride: tl.tensor,
    BLOCK: tl.constexpr,
) -> None:
    row = tl.program_id(0).to(tl.int64)
    lane = tl.arange(0, BLOCK)
    largest = tl.zeros((BLOCK,), tl.float32)
    is_nan = tl.zeros((BLOCK,), tl.int32)
    for start in range(0, in_features, BLOCK):
        column = start + lane
        numbers = tl.load(x + row * x_stride + column, mask=column < in_features, other=0.0).to(tl.float32)
        largest = tl.maximum(largest, tl.abs(numbers))
        is_nan |= (numbers != numbers).to(tl.int32)
    # Maxima leave NaN out.
    scale = tl.div_rn(tl.max(largest, axis=0), _MAX)
    scale = tl.where(tl.max(is_nan, axis=0) > 0, float("nan"), scale)
    tl.store(scales + row, scale)
    divisor = tl.where(scale == 0.0, 1.0, scale)
    for start in range(0, in_features, BLOCK):
        column = start + lane
        numbers = tl.load(x + row * x_stride + column, mask=column < in_features, other=0.0).to(tl.float32)
        quotients = tl.div_rn(numbers, tl.zeros((BLOCK,), tl.float32) + divisor)
        # Comparisons that NaN fails: it stays.
        quotients = tl.where(quotients > _MAX, _MAX, tl.where(quotients < -_MAX, -_MAX, quotients))
        tl.store(codes + row * in_features + column, quotients.to(tl.float8e4nv), mask=column < in_features)


@triton.jit(do_not_specialize=["rows", "iterations"])
def _linear_fp8_kernel(
    out: tl.tensor,  # [rows, out_features]; SPLIT: [splits, rows, out_features] fp32
    codes: tl.tensor,  # [rows, in_features] e4m3
    row_scales: tl.tensor,  # [rows] fp32
    values: tl.tensor,  # [out_features, in_features] e4m3
    scales: tl.tensor,  # [out_features, groups] fp32
    bias: tl.tensor,  # [out_features], or None
    rows: tl.tensor,
    in_features: tl.tensor,
    out_features: tl.tensor,
    group_size: tl.tensor,
    iterations: tl.tensor,  # of a part of the inputs
    out_stride: tl.tensor,
    codes_stride: tl.tensor,
    values_stride: tl.tensor,
    scales_stride: tl.tensor,
    BLOCK_OUTPUTS: tl.constexpr,
    BLOCK_ROWS: tl.constexpr,
    BLOCK_INNER: tl.constexpr,
    STEPS: tl.constexpr,
    WHOLE: tl.constexpr,
    GROUPED: tl.constexpr,
    SPLIT: tl.constexpr,
) -> None:
    row_tiles = tl.cdiv(rows, BLOCK_ROWS)
    split = tl.program_id(1)
    row = (tl.program_id(0) % row_tiles).to(tl.int64) * BLOCK_ROWS + tl.arange(0, BLOCK_ROWS)
    output = (tl.program_id(0) // row_tiles).to(tl.int64) * BLOCK_OUTPUTS + tl.arange(0, BLOCK_OUTPUTS)
    in_rows, in_outputs = row < rows, output < out_features
    inner = tl.arange(0, BLOCK_INNER)
    codes_at = codes + row[None, :] * codes_stride + inner[:, None]
    values_at = values + output[:, None] * values_stride + inner[None, :]
    scales_at = scales + output * scales_stride
    first = split * iterations * (STEPS * BLOCK_INNER)
    accumulator = tl.zeros((BLOCK_OUTPUTS, BLOCK_ROWS), tl.float32)
    scale = tl.load(scales_at + (first // group_size if GROUPED else 0), mask=in_outputs, other=0.0)
    for start in range(first, min(first + iterations * (STEPS * BLOCK_INNER), in_features), STEPS * BLOCK_INNER):
        for step in tl.static_range(STEPS):
            at = start + step * BLOCK_INNER
            if WHOLE:
                values_mask, codes_mask = in_outputs[:, None], in_rows[None, :]
            else:
                is_input = at + inner < in_features
                values_mask, codes_mask = in_outputs[:, None] & is_input[None, :], in_rows[None, :] & is_input[:, None]
            values_tile = tl.load(values_at + at, mask=values_mask, other=0.0)
            codes_tile = tl.load(codes_at + at, mask=codes_mask, other=0.0)
            products = tl.dot(values_tile, codes_tile)
            if GROUPED:
                group = min(at + BLOCK_INNER, in_features - 1) // group_size
                next_scale = tl.load(scales_at + group, mask=in_outputs, other=0.0)
                accumulator += products * scale[:, None]
                scale = next_scale
            else:
                accumulator += products
    if not GROUPED:
        accumulator *= scale[:, None]
    accumulator *= tl.load(row_scales + row, mask=in_rows, other=0.0)[None, :]
    if bias is not None:
        accumulator += tl.load(bias + output, mask=in_outputs, other=0.0).to(tl.float32)[:, None]
    if SPLIT:
        row += split.to(tl.int64) * rows
    tl.store(
        out + row[None, :] * out_stride + output[:, None],
        accumulator.to(out.dtype.element_ty),
        mask=in_outputs[:, None] & in_rows[None, :],
    )


def quantize_rows_fp8_triton(x: Tensor) -> tuple[Tensor, Tensor]:
    """Launch the kernel on `x` [rows, in_features]; return codes e4m3 like `x`, contiguous, and scales [rows] fp32."""
    rows, in_features = x.shape
    codes = torch.empty(rows, in_features, dtype=torch.float8_e4m3fn, device=x.device)
    scales = torch.empty(rows, dtype=torch.float32, device=x.device)
    if rows:
        _quantize_rows_fp8_kernel[(rows,)](
            codes, scales, x, in_features, x.stride(0), BLOCK=_BLOCK, num_warps=4, enable_fp_fusion=False
        )
    return codes, scales


def linear_fp8_triton(
    x: Tensor, weight: QuantizedWeight, bias: Tensor | None, *, out: Tensor, is_invariant: bool
) -> Tensor:
    """Quantize the rows of `x` and launch the products, on a device that has them; unchecked.

    Args:
        x: [rows, in_features], fp32, bf16 or fp16, stride 1 in the last dimension.
        weight: [out_features, in_features], fp8_e4m3; groups of a multiple of 32 inputs, or whole rows.
        bias: [out_features] of the dtype of `x`, or None.
        out: [rows, out_features], like `x`.
        is_invariant: a row's bits do not depend on the number of rows; on the other rows themselves they never do.

    Returns:
        `out`.
    """
    rows, in_features = x.shape
    if out.numel() == 0:
        return out
    codes, row_scales = quantize_rows_fp8_triton(x)
    tile = choose_fp8_tile(weight, rows=rows, is_invariant=is_invariant)
    splits, iterations = (1, cdiv(in_features, tile.span)) if is_invariant else choose_splits(weight, tile, rows=rows)
    is_split = splits > 1
    sums = x.new_empty(splits, rows, weight.out_features, dtype=torch.float32) if is_split else out
    _linear_fp8_kernel[(cdiv(weight.out_features, tile.outputs) * cdiv(rows, tile.rows), splits)](
        sums,
        codes,
        row_scales,
        weight.values,
        weight.scales,
        None if is_split else bias,
        rows,
        in_features,
        weight.out_features,
        weight.group_size,
        iterations,
        sums.stride(-2),
        codes.stride(0),
        weight.values.stride(0),
        weight.scales.stride(0),
        BLOCK_OUTPUTS=tile.outputs,
        BLOCK_ROWS=tile.rows,
        BLOCK_INNER=tile.inner,
        STEPS=tile.steps,
        WHOLE=in_features % tile.span == 0,
        GROUPED=weight.scales.shape[-1] > 1,
        SPLIT=is_split,
        num_warps=tile.num_warps,
        num_stages=tile.num_stages,
        enable_fp_fusion=False,
    )
    return join_splits_triton(sums, bias, out=out) if is_split else out


def linear_fp8_torch(x: Tensor, weight: QuantizedWeight, bias: Tensor | None, *, out: Tensor) -> Tensor:
    """The reference into `out`: what other devices compute; arguments as for `linear_fp8_triton`. No gradient flows."""
    return out.copy_(linear_fp8_reference(x.detach(), weight, bias))
