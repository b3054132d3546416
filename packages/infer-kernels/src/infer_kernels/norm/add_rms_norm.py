"""Residual add, then RMSNorm, in one pass.

    new_residual = x + residual
    normalized       = rms_norm(new_residual, weight)

Bytes moved: x and residual read, new_residual and normalized written: 4 * tokens * hidden * itemsize (unfused: 5).

Precision: the sum is taken in fp32 and rounded to the dtype of `x`; the norm reads the rounded sum, with the rounding
of its variant (see `rms_norm`). So the result is what two separate ops give.
"""

# ruff: noqa: N803 - compile-time arguments of kernels are upper case, as Triton writes them

import torch
import triton
import triton.language as tl
from torch import Tensor

from infer_kernels.arguments import require_dense_rows, require_like, require_out, require_shape
from infer_kernels.dispatch import takes_cpu_kernel, takes_triton
from infer_kernels.integers import cdiv
from infer_kernels.norm import cpu
from infer_kernels.norm.rms_norm import (
    NormVariant,
    check_norm,
    check_variant,
    normalize_tile,
    rms_norm_reference,
    rms_norm_torch,
    row_tile,
)


def add_rms_norm_reference(
    x: Tensor, residual: Tensor, weight: Tensor, eps: float, *, variant: NormVariant = "llama"
) -> tuple[Tensor, Tensor]:
    """(normalized, new_residual) in plain fp32 PyTorch; arguments as for `add_rms_norm`. Differentiable."""
    new_residual = (x.float() + residual.float()).to(x.dtype)
    return rms_norm_reference(new_residual, weight, eps, variant=variant), new_residual


@triton.jit(do_not_specialize=["tokens"])
def _add_rms_norm_kernel(
    out: tl.tensor,  # [tokens, hidden]
    residual_out: tl.tensor,  # [tokens, hidden]
    x: tl.tensor,  # [tokens, hidden]
    residual: tl.tensor,  # [tokens, hidden]
    weight: tl.tensor,  # [hidden]
    eps: tl.tensor,
    tokens: tl.tensor,
    hidden: tl.tensor,
    out_stride: tl.tensor,
    residual_out_stride: tl.tensor,
    x_stride: tl.tensor,
    residual_stride: tl.tensor,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
    GEMMA: tl.constexpr,
) -> None:
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)[:, None]
    column = tl.arange(0, BLOCK)
    mask = (row < tokens) & (column < hidden)[None, :]
    values = tl.load(x + row * x_stride + column[None, :], mask=mask, other=0.0).to(tl.float32)
    values += tl.load(residual + row * residual_stride + column[None, :], mask=mask, other=0.0).to(tl.float32)
    total = values.to(residual_out.dtype.element_ty)
    tl.store(residual_out + row * residual_out_stride + column[None, :], total, mask=mask)
    scale = tl.load(weight + column, mask=column < hidden, other=0.0).to(tl.float32)
    normalized = normalize_tile(total.to(tl.float32), scale, eps, hidden, out.dtype.element_ty, GEMMA)
    tl.store(out + row * out_stride + column[None, :], normalized, mask=mask)


def add_rms_norm_triton(
    x: Tensor,
    residual: Tensor,
    weight: Tensor,
    eps: float,
    *,
    variant: NormVariant,
    out: Tensor,
    residual_out: Tensor,
) -> tuple[Tensor, Tensor]:
    """Launch the kernel; arguments as for `add_rms_norm`, unchecked."""
    tokens, hidden = x.shape
    if tokens == 0:
        return out, residual_out
    rows, block, num_warps = row_tile(hidden)
    _add_rms_norm_kernel[(cdiv(tokens, rows),)](
        out,
        residual_out,
        x,
        residual,
        weight,
        eps,
        tokens,
        hidden,
        out.stride(0),
        residual_out.stride(0),
        x.stride(0),
        residual.stride(0),
        ROWS=rows,
        BLOCK=block,
        GEMMA=variant == "gemma",
        num_warps=num_warps,
        enable_fp_fusion=False,
    )
    return out, residual_out


def check_residual(
    x: Tensor, residual: Tensor, out: Tensor | None, residual_out: Tensor | None, *, dims: tuple[int, ...] = (2,)
) -> None:
    """Raise unless `x` is [tokens, hidden], or of one of `dims` dimensions, and `residual` and the outputs like it."""
    if x.dim() not in dims:
        raise ValueError(f"`x` has shape {list(x.shape)}; pass [tokens, hidden]")
    require_shape("residual", residual, x.shape, "the shape of `x`")
    require_like("residual", residual, "x", x)
    require_dense_rows("residual", residual)
    if out is not None:
        require_out("out", out, "x", x)
    if residual_out is not None:
        require_out("residual_out", residual_out, "x", x)


def check_scale(x: Tensor, scale: Tensor | None) -> None:
    """Raise unless `scale` is one number that can multiply `x`, or None."""
    if scale is not None:
        require_shape("scale", scale, (1,), "one number for all rows")
        require_like("scale", scale, "x", x)


def add_rms_norm(
    x: Tensor,
    residual: Tensor,
    weight: Tensor,
    eps: float,
    *,
    variant: NormVariant = "llama",
    out: Tensor | None = None,
    residual_out: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Add `x` to the residual stream and normalize the sum.

    Args:
        x: [tokens, hidden], fp32, bf16 or fp16.
        residual: like `x`.
        weight: [hidden], of the dtype and device of `x`.
        eps: added to the mean square.
        variant: as for `rms_norm`.
        out: like `x`, takes the normalized rows; may be `x`.
        residual_out: like `x`, takes the sum; may be `residual`.

    Returns:
        (normalized, new_residual), fresh tensors where none were given.

    Raises:
        ValueError: a shape, device or stride does not fit.
        TypeError: a dtype does not fit.
    """
    check_norm(x, weight)
    check_variant(variant)
    check_residual(x, residual, out, residual_out)
    if takes_triton(x, residual, weight):
        return add_rms_norm_triton(
            x,
            residual,
            weight,
            eps,
            variant=variant,
            out=torch.empty_like(x) if out is None else out,
            residual_out=torch.empty_like(x) if residual_out is None else residual_out,
        )
    if takes_cpu_kernel(x, residual, weight):
        is_gemma = variant == "gemma"
        return cpu.norm(x, weight, eps, is_gemma=is_gemma, residual=residual, out=out, residual_out=residual_out)
    new_residual = torch.add(x, residual, out=residual_out)
    return rms_norm_torch(new_residual, weight, eps, variant=variant, out=out), new_residual
