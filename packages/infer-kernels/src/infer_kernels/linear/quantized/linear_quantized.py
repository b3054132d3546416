"""Dense layers with quantized weights, in inputs of fp32, bf16 or fp16.

    y = x @ w.T + bias
    w[o, i] = (code[o, i] - zero[o, group of i]) * scale[o, group of i] - minimum[o, group of i]

The weight stays packed in memory. A program multiplies a tile of outputs with a tile of rows; the weight's rows are the
rows of its products, so that a few rows of x fill the tensor cores' other side. Where few rows and outputs make fewer
programs than the device runs, the inputs are divided over programs too. Their sums are added in order: for up to 16
rows by the program of a tile that ends last, as a semaphore tells it, which it sets back to 0; else by a second launch.

Bytes moved: those of the weight at few rows, for each tile of rows at many; partial sums are 4 bytes for each row,
output and part of the inputs.

Precision: numbers before their scales are exact. Their products are summed in fp32, group by group, times the scale;
one rounding after the bias. Where groups have minimums, a number of the weight is rounded to the dtype of x before it
is multiplied: an error of 2^-9 of it at most in bf16 and 2^-12 in fp16, as of a checkpoint that is stored in that
dtype. Tiled MXFP4 in bf16 and fp32, and tiled NVFP4: numbers times their scales are exact, and their products are
summed in fp32; NVFP4's sums are multiplied by the row's scale. fp32 is multiplied in full precision, not TF32. With
`is_invariant` a row has the same bits in any company: one tile, and the products of an output added from the first
input to the last by one program.
"""

# ruff: noqa: N803 - compile-time arguments of kernels are upper case, as Triton writes them

from functools import partial

import torch
from torch import Tensor
from torch.nn import functional

from infer_kernels.integers import cdiv
from infer_kernels.linear.quantized.join_splits import join_partials, join_splits_triton
from infer_kernels.linear.quantized.quantized_tiles import choose_quantized_tile, choose_splits
from infer_kernels.linear.reference import linear_reference
from infer_kernels.linear.row_tiles import multiply_row_tiles
from infer_kernels.optional_triton import tl, triton
from infer_kernels.quantization import operands
from infer_kernels.quantization.code_tiles import as_bytes, codes_of, scales_of
from infer_kernels.quantization.quantized_weight import QuantizedWeight
from infer_kernels.quantization.weight_tiles import multiply_weight_tile

_JOINED_ROWS = 16
"""Most rows of a tile whose last program adds its sums: those of larger tiles do not fit the registers."""
_PIECE = 2**21
"""Numbers that plain PyTorch dequantizes at once: 32 MiB with the four tensors that it takes."""


def linear_quantized_reference(x: Tensor, weight: QuantizedWeight, bias: Tensor | None = None) -> Tensor:
    """The formula in plain fp32 PyTorch, rounded once to the dtype of `x` [..., in_features]."""
    return linear_reference(x, weight.dequantize(), bias)


@triton.jit(do_not_specialize=["rows", "iterations"])
def _linear_quantized_kernel(
    out: tl.tensor,  # [rows, out_features]; SPLIT: [splits, rows, out_features] fp32
    x: tl.tensor,  # [rows, in_features]
    values: tl.tensor,  # [out_features, bytes] uint8
    scales: tl.tensor,  # [out_features, groups] as `load_scales` takes them
    zeros: tl.tensor,  # [out_features, groups], or None
    minimums: tl.tensor,  # [out_features, groups] fp32, or None
    row_scales: tl.tensor,  # [out_features] fp32, or None
    bias: tl.tensor,  # [out_features], or None
    semaphores: tl.tensor,  # [tiles] int32, zeros before and after; None: nothing is joined
    partials: tl.tensor,  # fp32 [splits, rows, out_features], with semaphores
    rows: tl.tensor,
    in_features: tl.tensor,
    out_features: tl.tensor,
    iterations: tl.tensor,  # of a part of the inputs
    out_stride: tl.tensor,
    x_stride: tl.tensor,
    values_stride: tl.tensor,
    scales_stride: tl.tensor,
    zeros_stride: tl.tensor,
    minimums_stride: tl.tensor,
    row_scales_stride: tl.tensor,
    BLOCK_OUTPUTS: tl.constexpr,
    BLOCK_ROWS: tl.constexpr,
    BLOCK_INNER: tl.constexpr,
    STEPS: tl.constexpr,
    WHOLE: tl.constexpr,
    GROUP_SIZE: tl.constexpr,
    CODES: tl.constexpr,
    SPLIT: tl.constexpr,  # into `out`, for another launch
    JOINED: tl.constexpr,  # splits that are joined here; 0: none
) -> None:
    # Programs of the same outputs follow each other, and share the weight in L2.
    row_tiles = tl.cdiv(rows, BLOCK_ROWS)
    split = tl.program_id(1)
    row = (tl.program_id(0) % row_tiles).to(tl.int64) * BLOCK_ROWS + tl.arange(0, BLOCK_ROWS)
    output = (tl.program_id(0) // row_tiles).to(tl.int64) * BLOCK_OUTPUTS + tl.arange(0, BLOCK_OUTPUTS)
    in_rows, in_outputs = (row < rows)[None, :], output < out_features
    first = split * iterations * (STEPS * BLOCK_INNER)
    products = multiply_weight_tile(
        operands.InputRows(x + row[None, :] * x_stride, in_rows),
        operands.WeightRows(
            values + output * values_stride,
            scales + output * scales_stride,
            None if zeros is None else zeros + output * zeros_stride,
            None if minimums is None else minimums + output * minimums_stride,
            None if row_scales is None else row_scales + output * row_scales_stride,
            in_outputs,
        ),
        operands.InputSpan(first, min(first + iterations * (STEPS * BLOCK_INNER), in_features), in_features),
        operands.TileShape(BLOCK_OUTPUTS, BLOCK_ROWS, BLOCK_INNER, STEPS, WHOLE, GROUP_SIZE, CODES),
    )
    mask = in_outputs[:, None] & in_rows
    is_last = True
    if JOINED:
        at = partials + row[None, :] * out_features + output[:, None]
        stride = rows.to(tl.int64) * out_features
        tl.store(at + split * stride, products, mask=mask)
        # All threads' sums are written before the semaphore says so.
        tl.debug_barrier()
        semaphore = semaphores + tl.program_id(0)
        is_last = tl.atomic_add(semaphore, 1, sem="acq_rel", scope="gpu") == JOINED - 1
        if is_last:
            tl.store(semaphore, 0)
            products = join_partials(at, stride, mask, JOINED)
    if is_last:
        if bias is not None:
            products += tl.load(bias + output, mask=in_outputs, other=0.0).to(tl.float32)[:, None]
        if SPLIT:
            row += split.to(tl.int64) * rows
        tl.store(out + row[None, :] * out_stride + output[:, None], products.to(out.dtype.element_ty), mask=mask)


def linear_quantized_triton(
    x: Tensor,
    weight: QuantizedWeight,
    bias: Tensor | None,
    *,
    out: Tensor,
    is_invariant: bool,
    semaphores: Tensor | None = None,
) -> Tensor:
    """Launch the kernel, and another one where the inputs are divided over programs that do not join; unchecked.

    Args:
        x: [rows, in_features], fp32, bf16 or fp16, stride 1 in the last dimension.
        weight: [out_features, in_features], of any encoding; groups of a multiple of 16 inputs, or whole rows.
        bias: [out_features] of the dtype of `x`, or None.
        out: [rows, out_features], like `x`.
        is_invariant: a row's bits do not depend on the other rows and their number.
        semaphores: int32 zeros, of launches that run one after another; with them tiles of 16 rows are joined.

    Returns:
        `out`.
    """
    rows, in_features = x.shape
    if out.numel() == 0:
        return out
    tile = choose_quantized_tile(weight, x.dtype, rows=rows, is_invariant=is_invariant)
    splits, iterations = (1, cdiv(in_features, tile.span)) if is_invariant else choose_splits(weight, tile, rows=rows)
    tiles = cdiv(weight.out_features, tile.outputs) * cdiv(rows, tile.rows)
    is_joined = splits > 1 and tile.rows <= _JOINED_ROWS and semaphores is not None and tiles <= len(semaphores)
    is_split = splits > 1 and not is_joined
    partials = x.new_empty(splits, rows, weight.out_features, dtype=torch.float32) if splits > 1 else out
    sums = partials if is_split else out
    zeros, minimums = weight.zeros, weight.minimums
    _linear_quantized_kernel[(tiles, splits)](
        sums,
        x,
        as_bytes(weight),
        scales_of(weight),
        zeros,
        minimums,
        weight.row_scales,
        None if is_split else bias,
        semaphores if is_joined else None,
        partials if is_joined else None,
        rows,
        in_features,
        weight.out_features,
        iterations,
        sums.stride(-2),
        x.stride(0),
        weight.values.stride(0),
        weight.scales.stride(0),
        0 if zeros is None else zeros.stride(0),
        0 if minimums is None else minimums.stride(0),
        0 if weight.row_scales is None else weight.row_scales.stride(0),
        BLOCK_OUTPUTS=tile.outputs,
        BLOCK_ROWS=tile.rows,
        BLOCK_INNER=tile.inner,
        STEPS=tile.steps,
        WHOLE=in_features % tile.span == 0,
        GROUP_SIZE=weight.group_size if weight.scales.shape[-1] > 1 else 0,
        CODES=codes_of(weight),
        SPLIT=is_split,
        JOINED=splits if is_joined else 0,
        num_warps=tile.num_warps,
        num_stages=tile.num_stages,
        enable_fp_fusion=False,
    )
    return join_splits_triton(sums, bias, out=out) if is_split else out


def linear_quantized_torch(
    x: Tensor, weight: QuantizedWeight, bias: Tensor | None, *, out: Tensor, is_invariant: bool
) -> Tensor:
    """Dequantize some outputs at a time and multiply in fp32; arguments as for `linear_quantized_triton`.

    No gradient flows.
    """
    numbers = x.detach().float()
    piece = max(1, _PIECE // max(1, weight.in_features))
    for start in range(0, weight.out_features, piece):
        size = min(piece, weight.out_features - start)
        outputs = slice(start, start + size)
        part = weight.rows(start, size).dequantize()
        part_bias = None if bias is None else bias[outputs].float()
        multiply = partial(functional.linear, weight=part, bias=part_bias)
        out[:, outputs] = (
            multiply_row_tiles(numbers, multiply, out=numbers.new_empty(len(numbers), size))
            if is_invariant
            else multiply(numbers)
        )
    return out
