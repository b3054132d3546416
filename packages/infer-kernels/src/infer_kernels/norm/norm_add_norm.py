"""RMSNorm, residual add, RMSNorm, in one pass: the sandwich of Gemma 3.

    new_residual = residual + rms_norm(x, post_weight)       (times `scale`, where one is given)
    normalized       = rms_norm(new_residual, next_weight)

Bytes moved: x and residual read, new_residual and normalized written: 4 * tokens * hidden * itemsize (unfused: 7).

Precision: each norm has the rounding of its variant (see `rms_norm`); the sum is taken in fp32 of rounded operands and
rounded to the dtype of `x`, as is its product with the scale; the second norm reads the rounded sum. So the result is
what separate ops give.
"""

# ruff: noqa: N803 - compile-time arguments of kernels are upper case, as Triton writes them

import torch
import triton
import triton.language as tl
from torch import Tensor

from infer_kernels.dispatch import takes_cpu_kernel, takes_triton
from infer_kernels.integers import cdiv
from infer_kernels.norm import cpu
from infer_kernels.norm.add_rms_norm import check_residual, check_scale
from infer_kernels.norm.rms_norm import (
    NormVariant,
    check_norm,
    check_variant,
    normalize_tile,
    rms_norm_reference,
    rms_norm_torch,
    row_tile,
)


def norm_add_norm_reference(
    x: Tensor,
    residual: Tensor,
    post_weight: Tensor,
    next_weight: Tensor,
    eps: float,
    *,
    variant: NormVariant = "gemma",
    scale: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """(normalized, new_residual) in plain fp32 PyTorch; arguments as for `norm_add_norm`. Differentiable."""
    post = rms_norm_reference(x, post_weight, eps, variant=variant)
    new_residual = (residual.float() + post.float()).to(x.dtype)
    if scale is not None:
        new_residual = new_residual * scale
    return rms_norm_reference(new_residual, next_weight, eps, variant=variant), new_residual


@triton.jit(do_not_specialize=["tokens"])
def _norm_add_norm_kernel(
    out: tl.tensor,  # [tokens, hidden]
    residual_out: tl.tensor,  # [tokens, hidden]
    x: tl.tensor,  # [tokens, hidden]
    residual: tl.tensor,  # [tokens, hidden]
    post_weight: tl.tensor,  # [hidden]
    next_weight: tl.tensor,  # [hidden]
    scale: tl.tensor,  # [1], or None
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
    in_row = column < hidden
    mask = (row < tokens) & in_row[None, :]
    values = tl.load(x + row * x_stride + column[None, :], mask=mask, other=0.0).to(tl.float32)
    post_scale = tl.load(post_weight + column, mask=in_row, other=0.0).to(tl.float32)
    post = normalize_tile(values, post_scale, eps, hidden, out.dtype.element_ty, GEMMA)
    carried = tl.load(residual + row * residual_stride + column[None, :], mask=mask, other=0.0).to(tl.float32)
    total = (carried + post.to(tl.float32)).to(residual_out.dtype.element_ty)
    if scale is not None:
        total = (total.to(tl.float32) * tl.load(scale).to(tl.float32)).to(residual_out.dtype.element_ty)
    tl.store(residual_out + row * residual_out_stride + column[None, :], total, mask=mask)
    next_scale = tl.load(next_weight + column, mask=in_row, other=0.0).to(tl.float32)
    normalized = normalize_tile(total.to(tl.float32), next_scale, eps, hidden, out.dtype.element_ty, GEMMA)
    tl.store(out + row * out_stride + column[None, :], normalized, mask=mask)


def norm_add_norm_triton(
    x: Tensor,
    residual: Tensor,
    post_weight: Tensor,
    next_weight: Tensor,
    eps: float,
    *,
    variant: NormVariant,
    scale: Tensor | None,
    out: Tensor,
    residual_out: Tensor,
) -> tuple[Tensor, Tensor]:
    """Launch the kernel; arguments as for `norm_add_norm`, unchecked."""
    tokens, hidden = x.shape
    if tokens == 0:
        return out, residual_out
    rows, block, num_warps = row_tile(hidden)
    _norm_add_norm_kernel[(cdiv(tokens, rows),)](
        out,
        residual_out,
        x,
        residual,
        post_weight,
        next_weight,
        scale,
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


def norm_add_norm(
    x: Tensor,
    residual: Tensor,
    post_weight: Tensor,
    next_weight: Tensor,
    eps: float,
    *,
    variant: NormVariant = "gemma",
    scale: Tensor | None = None,
    out: Tensor | None = None,
    residual_out: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Normalize a sublayer's output, add it to the residual stream and normalize the sum for the next sublayer.

    Args:
        x: [tokens, hidden], fp32, bf16 or fp16: what the sublayer gave.
        residual: like `x`.
        post_weight: [hidden], of the dtype and device of `x`: the sublayer's own output norm.
        next_weight: like `post_weight`: the input norm of what comes next.
        eps: added to both mean squares.
        variant: variant of both norms, as for `rms_norm`.
        scale: [1], of the dtype and device of `x`, multiplies the sum; None: it stays.
        out: like `x`, takes the normalized rows; may be `x`.
        residual_out: like `x`, takes the sum; may be `residual`.

    Returns:
        (normalized, new_residual), fresh tensors where none were given.

    Raises:
        ValueError: a shape, device or stride does not fit.
        TypeError: a dtype does not fit.
    """
    check_norm(x, post_weight, "post_weight")
    check_norm(x, next_weight, "next_weight")
    check_variant(variant)
    check_residual(x, residual, out, residual_out)
    check_scale(x, scale)
    if takes_triton(x, residual, post_weight, next_weight):
        return norm_add_norm_triton(
            x,
            residual,
            post_weight,
            next_weight,
            eps,
            variant=variant,
            scale=scale,
            out=torch.empty_like(x) if out is None else out,
            residual_out=torch.empty_like(x) if residual_out is None else residual_out,
        )
    if takes_cpu_kernel(x, residual, post_weight, next_weight):
        return cpu.norm(
            x,
            next_weight,
            eps,
            is_gemma=variant == "gemma",
            residual=residual,
            post_weight=post_weight,
            scale=scale,
            out=out,
            residual_out=residual_out,
        )
    post = rms_norm_torch(x, post_weight, eps, variant=variant)
    if scale is None:
        new_residual = torch.add(residual, post, out=residual_out)
    else:
        new_residual = torch.mul(residual + post, scale, out=residual_out)
    return rms_norm_torch(new_residual, next_weight, eps, variant=variant, out=out), new_residual
