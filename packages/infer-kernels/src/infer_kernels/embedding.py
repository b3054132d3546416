"""Embeddings: rows of a table, times a number.

    y = weight[ids] * scale

of a quantized table

    y[t] = w[ids[t]] * scale
    w[o, i] = (code[o, i] - zero[o, group of i]) * row_scale[o, group of i] - minimum[o, group of i]

Bytes moved: tokens * hidden * 2 * itemsize, of a quantized table less: the rows' codes and scales. Precision: one
rounding; a quantized table's numbers are computed in fp32.
"""

# ruff: noqa: N803 - compile-time arguments of kernels are upper case, as Triton writes them

import torch
from torch import Tensor
from torch.nn import functional

from infer_kernels.arguments import require_dense_rows, require_float, require_integer, require_rank
from infer_kernels.cpu.arguments import Arguments
from infer_kernels.cpu.calls import empty, is_recording, run
from infer_kernels.cpu.packed_weight import PackedQuantizedWeight
from infer_kernels.dispatch import takes_cpu_kernel, takes_triton
from infer_kernels.integers import cdiv, next_power_of_2
from infer_kernels.optional_triton import tl, triton
from infer_kernels.quantization.code_tiles import (
    as_bytes,
    codes_of,
    load_scales,
    load_zeros,
    numbers_of_codes,
    scales_of,
    zero_of_codes,
)
from infer_kernels.quantization.quantized_weight import QuantizedWeight

_WIDEST = 1024
"""Numbers of a row that a program takes."""
_EMBEDDING = Arguments("Embedding")
_EMBEDDING_QUANTIZED = Arguments("EmbeddingQuantized")


def embedding_reference(ids: Tensor, weight: Tensor, *, scale: float = 1.0) -> Tensor:
    """`weight[ids] * scale` in plain fp32 PyTorch; arguments as for `embedding`. Differentiable."""
    return (weight[ids.long()].float() * scale).to(weight.dtype)


def embedding(ids: Tensor, weight: Tensor, *, scale: float = 1.0) -> Tensor:
    """The row of each token id.

    Args:
        ids: [tokens], int32 or int64.
        weight: [rows, hidden], fp32, bf16 or fp16.
        scale: multiplies the rows.

    Returns:
        [tokens, hidden], like `weight`. Differentiable.

    Raises:
        ValueError: a shape or stride does not fit.
        TypeError: a dtype does not fit.
        IndexError: an id is not a row of `weight`; a captured step gives NaN instead.
    """
    require_rank("ids", ids, "tokens")
    require_integer("ids", ids)
    require_rank("weight", weight, "rows, hidden")
    require_float("weight", weight)
    if not takes_cpu_kernel(weight):
        rows = functional.embedding(ids, weight)
        return rows if scale == 1.0 else rows * scale
    require_dense_rows("weight", weight)
    _require_ids(ids, weight.shape[0])
    return _embedding_on_cpu(ids, weight, scale)


def embedding_quantized(
    ids: Tensor, weight: QuantizedWeight | PackedQuantizedWeight, *, scale: float = 1.0, dtype: torch.dtype
) -> Tensor:
    """The row of each token id in a quantized table.

    Args:
        ids: [tokens], int32 or int64.
        weight: [rows, hidden]; may come from `prepack`.
        scale: multiplies the rows.
        dtype: dtype of the result: fp32, bf16 or fp16.

    Returns:
        [tokens, hidden].

    Raises:
        ValueError: a shape does not fit.
        TypeError: a dtype does not fit.
        IndexError: an id is not a row of `weight`; a captured step gives NaN instead.
    """
    require_rank("ids", ids, "tokens")
    require_integer("ids", ids)
    if isinstance(weight, PackedQuantizedWeight):
        _require_ids(ids, weight.out_features)
        return _embedding_quantized_on_cpu(ids, weight, scale, dtype)
    takes_kernel = takes_triton(weight.values) and not weight.traits.is_tiled and weight.is_for_triton
    look_up = embedding_quantized_triton if takes_kernel else embedding_quantized_torch
    return look_up(ids, weight, dtype=dtype, scale=scale)


def _require_ids(ids: Tensor, num_rows: int) -> None:
    """Raise `IndexError` unless all of `ids` are rows; while a step is recorded, they are not known."""
    if len(ids) and not is_recording():
        least, most = (int(bound) for bound in ids.aminmax())
        if least < 0 or most >= num_rows:
            raise IndexError(f"`ids` are from {least} to {most}; pass rows of `weight`: 0 to {num_rows - 1}")


def _embedding_on_cpu(ids: Tensor, weight: Tensor, scale: float) -> Tensor:
    """Return the rows `ids` [tokens] of weight [rows, hidden], times `scale`."""
    ids = ids if ids.is_contiguous() else ids.contiguous()
    vocab, hidden = weight.shape
    out = empty((len(ids), hidden), weight.dtype)
    arguments = _EMBEDDING.pack(out=out, ids=ids, weight=weight, vocab=vocab, hidden=hidden, scale=scale)
    run("embedding", weight.dtype, len(ids), arguments, work=out.numel())
    return out


def _embedding_quantized_on_cpu(ids: Tensor, weight: PackedQuantizedWeight, scale: float, dtype: torch.dtype) -> Tensor:
    """Return the rows `ids` [tokens] of a weight [rows, hidden], times `scale`, in `dtype`."""
    ids = ids if ids.is_contiguous() else ids.contiguous()
    out = empty((len(ids), weight.in_features), dtype)
    arguments = _EMBEDDING_QUANTIZED.pack(
        out=out, ids=ids, panels=weight.panels, vocab=weight.out_features, scale=scale, layout=weight.layout
    )
    run("embedding_quantized", dtype, len(ids), arguments, work=out.numel())
    return out


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
    minimums: tl.tensor,  # [table_rows, groups] fp32, or None
    row_scales: tl.tensor,  # [table_rows] fp32, or None
    table_rows: tl.tensor,
    hidden: tl.tensor,
    group_size: tl.tensor,
    scale: tl.tensor,
    out_stride: tl.tensor,
    values_stride: tl.tensor,
    scales_stride: tl.tensor,
    zeros_stride: tl.tensor,
    minimums_stride: tl.tensor,
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
                zero = zero_of_codes(CODES, minimums is not None)
            numbers = codes.to(tl.float32) - zero
    else:
        byte = (start // per_byte + tl.arange(0, BLOCK // per_byte))[None, :]
        codes = tl.load(values + row * values_stride + byte, mask=byte < (hidden + per_byte - 1) // per_byte, other=0)
        if zeros is not None:
            # Of a byte's first number, whose group is also the second's: groups are even.
            groups_of_bytes = byte * per_byte // group_size
            at = zeros + row * zeros_stride + groups_of_bytes
            zero = load_zeros(at, byte * per_byte < hidden, CODES)
        else:
            zero = zero_of_codes(CODES, minimums is not None)
        numbers = numbers_of_codes(codes, zero, tl.float32, CODES)
    numbers *= load_scales(scales + row * scales_stride + group, mask)
    if minimums is not None:
        numbers -= load_scales(minimums + row * minimums_stride + group, mask)
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
        dtype: dtype of the result, fp32, bf16 or fp16.
        scale: multiplies the rows.

    Returns:
        [tokens, hidden].
    """
    tokens, hidden = len(ids), weight.in_features
    out = torch.empty(tokens, hidden, dtype=dtype, device=ids.device)
    if out.numel() == 0:
        return out
    block = min(_WIDEST, max(2, next_power_of_2(hidden)))
    zeros, minimums = weight.zeros, weight.minimums
    _embedding_quantized_kernel[(tokens, cdiv(hidden, block))](
        out,
        ids,
        as_bytes(weight),
        scales_of(weight),
        zeros,
        minimums,
        weight.row_scales,
        weight.out_features,
        hidden,
        weight.group_size,
        float(scale),
        out.stride(0),
        weight.values.stride(0),
        weight.scales.stride(0),
        0 if zeros is None else zeros.stride(0),
        0 if minimums is None else minimums.stride(0),
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
