"""RMSNorm, then residual add, in one pass: what follows a sublayer in OLMo 2 and 3.

    new_residual = residual + rms_norm(x, weight)        (times `scale`, where one is given)

Bytes moved: x and residual read, new_residual written: 3 * tokens * hidden * itemsize (unfused: 5).

Precision: the norm has the rounding of its variant (see `rms_norm`); the sum is taken in fp32 of rounded operands and
rounded to the dtype of `x`; so is its product with the scale. So the result is what separate ops give.
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


def norm_add_reference(
    x: Tensor,
    residual: Tensor,
    weight: Tensor,
    eps: float,
    *,
    variant: NormVariant = "llama",
    scale: Tensor | None = None,
) -> Tensor:
    """Return the new residual in plain fp32 PyTorch; arguments as for `norm_add`. Differentiable."""
    normalized = rms_norm_reference(x, weight, eps, variant=variant)
    total = (residual.float() + normalized.float()).to(x.dtype)
    return total if scale is None else total * scale


@triton.jit(do_not_specialize=["tokens"])
def _norm_add_kernel(
    out: tl.tensor,  # [tokens, hidden]
    x: tl.tensor,  # [tokens, hidden]
    residual: tl.tensor,  # [tokens, hidden]
    weight: tl.tensor,  # [hidden]
    scale: tl.tensor,  # [1], or None
    eps: tl.tensor,
    tokens: tl.tensor,
    hidden: tl.tensor,
    out_stride: tl.tensor,
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
    carried = tl.load(residual + row * residual_stride + column[None, :], mask=mask, other=0.0).to(tl.float32)
    weights = tl.load(weight + column, mask=in_row, other=0.0).to(tl.float32)
    normalized = normalize_tile(values, weights, eps, hidden, out.dtype.element_ty, GEMMA)
    total = (carried + normalized.to(tl.float32)).to(out.dtype.element_ty)
    if scale is not None:
        total = (total.to(tl.float32) * tl.load(scale).to(tl.float32)).to(out.dtype.element_ty)
    tl.store(out + row * out_stride + column[None, :], total, mask=mask)


def norm_add_triton(
    x: Tensor,
    residual: Tensor,
    weight: Tensor,
    eps: float,
    *,
    variant: NormVariant,
    scale: Tensor | None,
    out: Tensor,
) -> Tensor:
    """Launch the kernel; arguments as for `norm_add` of rows [tokens, hidden], unchecked."""
    tokens, hidden = x.shape
    if tokens == 0:
        return out
    rows, block, num_warps = row_tile(hidden)
    _norm_add_kernel[(cdiv(tokens, rows),)](
        out,
        x,
        residual,
        weight,
        scale,
        eps,
        tokens,
        hidden,
        out.stride(0),
        x.stride(0),
        residual.stride(0),
        ROWS=rows,
        BLOCK=block,
        GEMMA=variant == "gemma",
        num_warps=num_warps,
        enable_fp_fusion=False,
    )
    return out


def norm_add(
    x: Tensor,
    residual: Tensor,
    weight: Tensor,
    eps: float,
    *,
    variant: NormVariant = "llama",
    scale: Tensor | None = None,
    out: Tensor | None = None,
) -> Tensor:
    """Normalize a sublayer's output and add it to the residual stream.

    Args:
        x: [tokens, hidden] or [tokens, heads, hidden], fp32, bf16 or fp16: what the sublayer gave.
        residual: like `x`.
        weight: [hidden], of the dtype and device of `x`: the sublayer's output norm.
        eps: added to the mean square.
        variant: as for `rms_norm`.
        scale: [1], of the dtype and device of `x`, multiplies the sum; None: it stays.
        out: like `x`, takes the sum; may be `x` or `residual`.

    Returns:
        The new residual stream: `out`, or a fresh tensor.

    Raises:
        ValueError: a shape, device or stride does not fit.
        TypeError: a dtype does not fit.
    """
    check_norm(x, weight)
    check_variant(variant)
    check_residual(x, residual, out, None, dims=(2, 3))
    check_scale(x, scale)
    if takes_triton(x, residual, weight):
        if x.dim() == 2:
            out = torch.empty_like(x) if out is None else out
            return norm_add_triton(x, residual, weight, eps, variant=variant, scale=scale, out=out)
        rows = x.new_empty(x.shape).flatten(0, 1)
        norm_add_triton(x.flatten(0, 1), residual.flatten(0, 1), weight, eps, variant=variant, scale=scale, out=rows)
        return rows.view(x.shape) if out is None else out.copy_(rows.view(x.shape))
    if takes_cpu_kernel(x, residual, weight):
        is_gemma = variant == "gemma"
        return cpu.norm(
            x, None, eps, is_gemma=is_gemma, residual=residual, post_weight=weight, scale=scale, residual_out=out
        )[1]
    normalized = rms_norm_torch(x, weight, eps, variant=variant)
    if scale is None:
        return torch.add(residual, normalized, out=out)
    return torch.mul(residual + normalized, scale, out=out)
