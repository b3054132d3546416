"""Embeddings from a quantized table: rows by id, times a number.

    y[t] = w[ids[t]] * scale,  w[o, i] = (code[o, i] - zero[o, group of i]) * row_scale[o, group of i]

Bytes moved: the rows' codes and scales, and tokens * hidden * itemsize. Precision: fp32 inside, one rounding.
"""

# ruff: noqa: N803 - compile-time arguments of kernels are upper case, as Triton writes them

import torch
import triton
import triton.language as tl
from torch import Tensor

from infer_kernels.integers import cdiv, next_power_of_2
from infer_kernels.quantization.code_tiles import (
    as_bytes,
    codes_of,
    load_scales,
    load_zeros,
    numbers_of_codes,
    scales_of,
)
from infer_kernels.quantization.quantized_weight import QuantizedWeight

_WIDEST = 1024
"""Numbers of a row that a program takes."""


def embedding_quantized_reference(
    ids: Tensor, weight: QuantizedWeight, *, dtype: torch.dtype, scale: float = 1.0
) -> Tensor:
    """The formula in plain fp32 PyTorch, rounded once to `dtype`; arguments as for `embedding_quantized_triton`."""
    return (weight.dequantize()[ids.long()] * scale).to(dtype)


@triton.jit(do_not_specialize=["scale"], do_not_specialize_on_alignment=["ids"])
def _embedding_quantized_kernel(
    out: tl.tensor,  # [tokens, hidden]
    ids: tl.tensor,  # [tokens]
    values: tl.tensor,  # [table_rows, bytes] uint8
    scales: tl.tensor,  # [table_rows, groups] as `load_scales` takes them
    zeros: tl.tensor,  # [table_rows, groups], or None
    row_scales: tl.tensor,  # [table_rows] fp32, or None
    table_rows: tl.tensor,
    hidden: tl.tensor,
    group_size: tl.tensor,
    scale: tl.tensor,
    out_stride: tl.tensor,
    values_stride: tl.tensor,
    scales_stride: tl.tensor,
    zeros_stride: tl.tensor,
    row_scales_stride: tl.tensor,
    BLOCK: tl.constexpr,
    CODES: tl.constexpr,
) -> None:
    per_byte: tl.constexpr = 2 if CODES == "int4" or CODES == "e2m1" else 1
    token = tl.program_id(0).to(tl.int64)
    row = tl.load(ids + token).to(tl.int64)
    is_row = (row >= 0) & (row < table_rows)
    row = tl.where(is_row, row, 0)
    start = tl.program_id(1) * BLOCK
    column = (start + tl.arange(0, BLOCK))[None, :]
    mask = column < hidden
    group = column // group_size
    is_words: tl.constexpr = CODES == "int4_words" or CODES == "int8_words" or CODES == "fp8_words"
    if is_words:
        # One by one: a table's rows are few.
        if CODES == "int4_words":
            byte = column // 32 * 16 + column // 2 % 4 * 4 + column % 2 * 2 + column // 16 % 2
        else:
            byte = column // 16 * 16 + column // 2 % 4 * 4 + column // 8 % 2 * 2 + column % 2
        codes = tl.load(values + row * values_stride + byte, mask=mask, other=0)
        if CODES == "fp8_words":
            codes = (codes & 0x80) | ((codes & 7) << 4) | ((codes & 0x78) >> 3)
            numbers = numbers_of_codes(codes, 0.0, tl.float32, "fp8_e4m3")
        else:
            if CODES == "int4_words":
                codes = codes >> (column // 8 % 2 * 4).to(tl.uint8) & 15
            if zeros is not None:
                zero = load_zeros(zeros + row * zeros_stride + group, mask, CODES)
            else:
                zero = 8.0 if CODES == "int4_words" else 128.0
            numbers = codes.to(tl.float32) - zero
    else:
        byte = (start // per_byte + tl.arange(0, BLOCK // per_byte))[None, :]
        codes = tl.load(values + row * values_stride + byte, mask=byte < (hidden + per_byte - 1) // per_byte, other=0)
        if zeros is not None:
            # Of a byte's first number, whose group is also the second's: groups are even.
            groups_of_bytes = byte * per_byte // group_size
            at = zeros + row * zeros_stride + groups_of_bytes
            zero = load_zeros(at, byte * per_byte < hidden, CODES)
        elif CODES == "int4":
            zero = 8.0
        else:
            zero = 128.0
        numbers = numbers_of_codes(codes, zero, tl.float32, CODES)
    numbers *= load_scales(scales + row * scales_stride + group, mask)
    if row_scales is not None:
        numbers *= tl.load(row_scales + row * row_scales_stride)
    numbers = tl.where(is_row, numbers * scale, float("nan"))
    tl.store(out + token * out_stride + column, numbers.to(out.dtype.element_ty), mask=mask)


def embedding_quantized_triton(
    ids: Tensor, weight: QuantizedWeight, *, dtype: torch.dtype, scale: float = 1.0
) -> Tensor:
    """Launch the kernel; unchecked.

    Args:
        ids: [tokens], int32 or int64; one that is no row of `weight` gives NaN, because a captured step cannot raise.
        weight: [rows, hidden], of any encoding that is not tiled; groups of an even number of inputs, or whole rows.
        dtype: of the result, fp32, bf16 or fp16.
        scale: multiplies the rows.

    Returns:
        [tokens, hidden].
    """
    tokens, hidden = len(ids), weight.in_features
    out = torch.empty(tokens, hidden, dtype=dtype, device=ids.device)
    if out.numel() == 0:
        return out
    block = min(_WIDEST, max(2, next_power_of_2(hidden)))
    zeros = weight.zeros
    _embedding_quantized_kernel[(tokens, cdiv(hidden, block))](
        out,
        ids,
        as_bytes(weight),
        scales_of(weight),
        zeros,
        weight.row_scales,
        weight.out_features,
        hidden,
        weight.group_size,
        float(scale),
        out.stride(0),
        weight.values.stride(0),
        weight.scales.stride(0),
        0 if zeros is None else zeros.stride(0),
        0 if weight.row_scales is None else weight.row_scales.stride(0),
        BLOCK=block,
        CODES=codes_of(weight),
        num_warps=4,
        enable_fp_fusion=False,
    )
    return out


def embedding_quantized_torch(
    ids: Tensor, weight: QuantizedWeight, *, dtype: torch.dtype, scale: float = 1.0
) -> Tensor:
    """Dequantize the rows that are asked for; arguments as for `embedding_quantized_triton`.

    Raises:
        IndexError: an id is not a row of `weight`.
    """
    picked = ids.long()
    rows = weight.map_rows(lambda tensor: tensor.index_select(0, picked))
    return (rows.dequantize() * scale).to(dtype)
