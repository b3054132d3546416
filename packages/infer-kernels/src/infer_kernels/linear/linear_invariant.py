"""Dense layers whose rows have the same bits in every batch.

    y = x @ weight.T + bias

Libraries choose a matrix product's kernel, and with it the order in which a row's products are added, by the number of
rows. Here a row meets the same arithmetic whatever its batch and its place therein, at the price of speed. He,
"Defeating Nondeterminism in LLM Inference", 2025.

On CUDA: products added from the first column to the last by one program, which reads the weight once per tile of rows.
On sm_90 many rows take larger tiles, in which a row's products are added in the same order, to the same bits. On a CPU
with a prepacked weight: `linear`, which is as invariant. Elsewhere: the library's product of tiles of 16 rows
(`infer_kernels.linear.row_tiles`).

Bytes moved: (in_features * out_features * tiles_of_rows + rows * (in_features * tiles_of_columns + out_features)) *
itemsize, less what caches keep.

Precision: fp32 accumulation, one rounding; fp32 inputs are multiplied in full precision, not TF32. Bits are equal on
one device with one version of the libraries, and for CPUs with one number of threads: not between them.
"""

# ruff: noqa: N803 - compile-time arguments of kernels are upper case, as Triton writes them

from math import prod

import torch
from torch import Tensor

from infer_kernels.arguments import require_dense_rows, require_float, require_like, require_rank, require_shape
from infer_kernels.cpu.packed_weight import PackedWeight
from infer_kernels.dispatch import takes_triton
from infer_kernels.integers import cdiv
from infer_kernels.linear.linear import DenseWeight, linear, multiply_packed
from infer_kernels.linear.product_tiles import choose_product_tile
from infer_kernels.linear.quantized.multiply import multiply_quantized
from infer_kernels.linear.reference import linear_reference
from infer_kernels.linear.row_tiles import multiply_row_tiles
from infer_kernels.optional_triton import tl, triton

_GROUP = 8
"""Tiles of rows whose programs follow each other for the same columns of the output, and share them in L2."""


def linear_invariant_reference(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """The layer in plain fp32 PyTorch; arguments as for `linear_invariant`. Differentiable."""
    return linear_reference(x, weight, bias)


@triton.jit(do_not_specialize=["rows"])
def _linear_invariant_kernel(
    out: tl.tensor,  # [rows, out_features]
    x: tl.tensor,  # [rows, in_features]
    weight: tl.tensor,  # [out_features, in_features]
    bias: tl.tensor,  # [out_features], or None
    rows: tl.tensor,
    in_features: tl.tensor,
    out_features: tl.tensor,
    out_stride: tl.tensor,
    x_stride: tl.tensor,
    weight_stride: tl.tensor,
    BLOCK_ROWS: tl.constexpr,
    BLOCK_COLUMNS: tl.constexpr,
    BLOCK_INNER: tl.constexpr,
    WHOLE: tl.constexpr,  # in_features is a multiple of BLOCK_INNER
    GROUP: tl.constexpr,
) -> None:
    # Program numbers with GROUP 2:       columns ->
    #                               rows   0  2  4
    #                                 |    1  3  5
    #                                 v    6  7  8
    program = tl.program_id(0)
    row_tiles, column_tiles = tl.cdiv(rows, BLOCK_ROWS), tl.cdiv(out_features, BLOCK_COLUMNS)
    first_tile = program // (GROUP * column_tiles) * GROUP
    group = min(row_tiles - first_tile, GROUP)
    row_tile = first_tile + program % (GROUP * column_tiles) % group
    column_tile = program % (GROUP * column_tiles) // group

    row = row_tile.to(tl.int64) * BLOCK_ROWS + tl.arange(0, BLOCK_ROWS)
    column = column_tile.to(tl.int64) * BLOCK_COLUMNS + tl.arange(0, BLOCK_COLUMNS)
    inner = tl.arange(0, BLOCK_INNER)
    x_at = x + row[:, None] * x_stride + inner[None, :]
    weight_at = weight + column[None, :] * weight_stride + inner[:, None]
    in_rows, in_columns = (row < rows)[:, None], (column < out_features)[None, :]
    accumulator = tl.zeros((BLOCK_ROWS, BLOCK_COLUMNS), tl.float32)
    for start in range(0, in_features, BLOCK_INNER):
        if WHOLE:
            x_mask, weight_mask = in_rows, in_columns
        else:
            x_mask = in_rows & (start + inner < in_features)[None, :]
            weight_mask = in_columns & (start + inner < in_features)[:, None]
        x_tile = tl.load(x_at + start, mask=x_mask, other=0.0)
        weight_tile = tl.load(weight_at + start, mask=weight_mask, other=0.0)
        accumulator = tl.dot(x_tile, weight_tile, accumulator, input_precision="ieee")
    if bias is not None:
        accumulator += tl.load(bias + column, mask=column < out_features, other=0.0).to(tl.float32)[None, :]
    tl.store(
        out + row[:, None] * out_stride + column[None, :],
        accumulator.to(out.dtype.element_ty),
        mask=in_rows & in_columns,
    )


def linear_invariant_triton(x: Tensor, weight: Tensor, bias: Tensor | None, *, out: Tensor) -> Tensor:
    """Launch the kernel on `x` [rows, in_features]; otherwise arguments as for `linear_invariant`, unchecked."""
    rows, in_features = x.shape
    out_features = weight.shape[0]
    if out.numel() == 0:
        return out
    tile = choose_product_tile(x.device, x.dtype, rows=rows, in_features=in_features, out_features=out_features)
    _linear_invariant_kernel[(cdiv(rows, tile.rows) * cdiv(out_features, tile.columns),)](
        out,
        x,
        weight,
        bias,
        rows,
        in_features,
        out_features,
        out.stride(0),
        x.stride(0),
        weight.stride(0),
        BLOCK_ROWS=tile.rows,
        BLOCK_COLUMNS=tile.columns,
        BLOCK_INNER=tile.inner,
        WHOLE=in_features % tile.inner == 0,
        GROUP=_GROUP,
        num_warps=tile.num_warps,
        num_stages=tile.num_stages,
        enable_fp_fusion=False,
    )
    return out


def linear_invariant_torch(x: Tensor, weight: Tensor, bias: Tensor | None, *, out: Tensor) -> Tensor:
    """Tiles of rows in plain PyTorch; arguments as for `linear_invariant_triton`. Differentiable.

    bf16 is multiplied in fp32 on a CPU: where oneDNN emulates it, some numbers of threads (3, 5, 6 and 7 were seen)
    divide a tile so that a row has other bits at another place of it.
    """
    if x.is_cpu and x.dtype == torch.bfloat16:
        wide, wide_bias = weight.float(), None if bias is None else bias.float()
        return multiply_row_tiles(x, lambda tile: linear(tile.float(), wide, wide_bias), out=out)
    return multiply_row_tiles(x, lambda tile: linear(tile, weight, bias), out=out)


def linear_invariant(
    x: Tensor, weight: DenseWeight, bias: Tensor | None = None, *, out: Tensor | None = None
) -> Tensor:
    """A dense layer over the last dimension that gives a row the same bits whatever the other rows and their number.

    Args:
        x: [..., in_features], fp32, bf16 or fp16, any strides but 1 in the last dimension.
        weight: [out_features, in_features], of the dtype and device of `x`; may be quantized, or come from `prepack`,
            whose bits may differ from those of the plain weight.
        bias: [out_features], or None.
        out: [..., out_features], of the dtype and device of `x`; contiguous, or two-dimensional with stride 1 in the
            last dimension.

    Returns:
        `out`, or a fresh tensor [..., out_features]; differentiable where no `out` is given and `weight` is plain.

    Raises:
        ValueError: a shape, device or stride does not fit.
        TypeError: a dtype does not fit.
    """
    if not isinstance(weight, Tensor):
        product = (
            multiply_packed(x, weight, bias)
            if isinstance(weight, PackedWeight)
            else multiply_quantized(x, weight, bias, is_invariant=True)
        )
        if out is None:
            return product
        require_shape("out", out, product.shape, "the rows of `x` and as many columns as `weight` has rows")
        require_like("out", out, "x", x)
        return out.copy_(product)
    require_rank("weight", weight, "out_features, in_features")
    require_float("x", x)
    require_like("weight", weight, "x", x)
    out_features, in_features = weight.shape
    if x.dim() == 0 or x.shape[-1] != in_features:
        raise ValueError(f"`x` has shape {list(x.shape)}; pass [..., {in_features}], as many as `weight` has columns")
    require_dense_rows("x", x)
    require_dense_rows("weight", weight)
    if bias is not None:
        require_shape("bias", bias, (out_features,), "as many as `weight` has rows")
        require_like("bias", bias, "x", x)
        require_dense_rows("bias", bias)
    shape = (*x.shape[:-1], out_features)
    if out is None:
        out = x.new_empty(shape)
    else:
        require_shape("out", out, shape, "the rows of `x` and as many columns as `weight` has rows")
        require_like("out", out, "x", x)
        require_dense_rows("out", out)
        if out.dim() != 2 and not out.is_contiguous():
            raise ValueError(f"`out` has strides {list(out.stride())}; pass a contiguous tensor")
    rows = prod(x.shape[:-1])
    layer = (
        linear_invariant_triton if takes_triton(x, weight, weight if bias is None else bias) else linear_invariant_torch
    )
    layer(x.reshape(rows, in_features), weight, bias, out=out if out.dim() == 2 else out.view(rows, out_features))
    return out
