"""Partial sums of products whose inputs were divided over programs: added in order, then the bias, rounded once."""

# ruff: noqa: N803 - compile-time arguments of kernels are upper case, as Triton writes them

from torch import Tensor

from infer_kernels.integers import cdiv
from infer_kernels.optional_triton import tl, triton

_BLOCK = 512


@triton.jit
def join_partials(
    at: tl.tensor,  # pointers to fp32, those of split 0
    stride: tl.tensor,  # of a split
    mask: tl.tensor,
    SPLITS: tl.constexpr,
) -> tl.tensor:
    """The sum of all splits, in order, of which other programs wrote most. Their loads do not wait for each other."""
    # Past the first-level cache, which may hold older values.
    total = tl.load(at, mask=mask, other=0.0, cache_modifier=".cg")
    for split in tl.static_range(1, SPLITS):
        total += tl.load(at + split * stride, mask=mask, other=0.0, cache_modifier=".cg")
    return total


@triton.jit(do_not_specialize=["rows", "splits"])
def _join_splits_kernel(
    out: tl.tensor,  # [rows, out_features]
    sums: tl.tensor,  # [splits, rows, out_features] fp32
    bias: tl.tensor,  # [out_features], or None
    rows: tl.tensor,
    splits: tl.tensor,
    out_features: tl.tensor,
    out_stride: tl.tensor,
    BLOCK: tl.constexpr,
) -> None:
    row = tl.program_id(0).to(tl.int64)
    output = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    mask = output < out_features
    total = tl.zeros((BLOCK,), tl.float32)
    for split in range(splits):
        total += tl.load(sums + (split * rows + row) * out_features + output, mask=mask, other=0.0)
    if bias is not None:
        total += tl.load(bias + output, mask=mask, other=0.0).to(tl.float32)
    tl.store(out + row * out_stride + output, total.to(out.dtype.element_ty), mask=mask)


def join_splits_triton(sums: Tensor, bias: Tensor | None, *, out: Tensor) -> Tensor:
    """Add `sums` [splits, rows, out_features] fp32 and `bias` [out_features] into `out` [rows, out_features]."""
    splits, rows, out_features = sums.shape
    _join_splits_kernel[(rows, cdiv(out_features, _BLOCK))](
        out,
        sums,
        bias,
        rows,
        splits,
        out_features,
        out.stride(0),
        BLOCK=_BLOCK,
        num_warps=4,
        enable_fp_fusion=False,
    )
    return out
