"""A residual add with a norm before it, a norm after it or both: `add_rms_norm`, `norm_add` and `norm_add_norm`.

    new_residual = residual + rms_norm(x, post_weight)      (x itself without `post_weight`; times `scale`, if given)
    normalized   = rms_norm(new_residual, next_weight)      (where there is a `next_weight`)

The files of the ops have bytes and precision. A weight or a scale of None is known when the kernel is compiled: what is
left out costs nothing.
"""

# ruff: noqa: N803 - compile-time arguments of kernels are upper case, as Triton writes them

import torch
from torch import Tensor

from infer_kernels.arguments import require_dense_rows, require_like, require_out, require_shape
from infer_kernels.dispatch import takes_cpu_kernel, takes_triton
from infer_kernels.integers import cdiv
from infer_kernels.norm import cpu
from infer_kernels.norm.rms_norm import NormVariant, check_variant, normalize_tile, rms_norm_torch, row_tile
from infer_kernels.optional_triton import tl, triton


@triton.jit(do_not_specialize=["tokens"])
def _residual_norms_kernel(
    out: tl.tensor,  # [tokens, hidden]; written where there is a `next_weight`
    residual_out: tl.tensor,  # [tokens, hidden]
    x: tl.tensor,  # [tokens, hidden]
    residual: tl.tensor,  # [tokens, hidden]
    post_weight: tl.tensor,  # [hidden], or None
    next_weight: tl.tensor,  # [hidden], or None
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
    dtype: tl.constexpr = residual_out.dtype.element_ty
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)[:, None]
    column = tl.arange(0, BLOCK)
    in_row = column < hidden
    mask = (row < tokens) & in_row[None, :]
    added = tl.load(x + row * x_stride + column[None, :], mask=mask, other=0.0).to(tl.float32)
    residual_at = residual + row * residual_stride + column[None, :]
    if next_weight is None:  # it arrives while `x` is normalized
        carried = tl.load(residual_at, mask=mask, other=0.0).to(tl.float32)
    if post_weight is not None:
        weight = tl.load(post_weight + column, mask=in_row, other=0.0).to(tl.float32)
        added = normalize_tile(added, weight, eps, hidden, dtype, GEMMA).to(tl.float32)
    if next_weight is not None:  # where two norms take all registers, a row that is read early is spilled
        carried = tl.load(residual_at, mask=mask, other=0.0).to(tl.float32)
    total = (carried + added).to(dtype)
    if scale is not None:
        total = (total.to(tl.float32) * tl.load(scale).to(tl.float32)).to(dtype)
    tl.store(residual_out + row * residual_out_stride + column[None, :], total, mask=mask)
    if next_weight is not None:
        weight = tl.load(next_weight + column, mask=in_row, other=0.0).to(tl.float32)
        normalized = normalize_tile(total.to(tl.float32), weight, eps, hidden, dtype, GEMMA)
        tl.store(out + row * out_stride + column[None, :], normalized, mask=mask)


def residual_norms_triton(
    x: Tensor,
    residual: Tensor,
    eps: float,
    *,
    post_weight: Tensor | None,
    next_weight: Tensor | None,
    scale: Tensor | None,
    variant: NormVariant,
    out: Tensor,
    residual_out: Tensor,
) -> tuple[Tensor, Tensor]:
    """Launch the kernel; arguments as for `residual_norms`, of rows [tokens, hidden]."""
    tokens, hidden = x.shape
    if tokens == 0:
        return out, residual_out
    rows, block, num_warps = row_tile(hidden)
    _residual_norms_kernel[(cdiv(tokens, rows),)](
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


def residual_norms(
    x: Tensor,
    residual: Tensor,
    eps: float,
    *,
    post_weight: Tensor | None = None,
    next_weight: Tensor | None = None,
    scale: Tensor | None = None,
    variant: NormVariant,
    out: Tensor | None = None,
    residual_out: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Return (normalized, new_residual) on the path of the tensors; the first has no meaning without `next_weight`.

    Arguments as for the ops, unchecked: rows [tokens, hidden]; on a CPU [tokens, heads, hidden], too.
    """
    weights = [weight for weight in (post_weight, next_weight) if weight is not None]
    if takes_triton(x, residual, *weights):
        residual_out = torch.empty_like(x) if residual_out is None else residual_out
        if out is None:
            out = residual_out if next_weight is None else torch.empty_like(x)
        return residual_norms_triton(
            x,
            residual,
            eps,
            post_weight=post_weight,
            next_weight=next_weight,
            scale=scale,
            variant=variant,
            out=out,
            residual_out=residual_out,
        )
    if takes_cpu_kernel(x, residual, *weights):
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
    added = x if post_weight is None else rms_norm_torch(x, post_weight, eps, variant=variant)
    if scale is None:
        total = torch.add(residual, added, out=residual_out)
    else:
        total = torch.mul(residual + added, scale, out=residual_out)
    return total if next_weight is None else rms_norm_torch(total, next_weight, eps, variant=variant, out=out), total


def check_residual(
    x: Tensor,
    residual: Tensor,
    variant: NormVariant,
    *,
    scale: Tensor | None = None,
    dims: tuple[int, ...] = (2,),
    **outs: Tensor | None,
) -> None:
    """Raise unless the variant is known, `x` has one of `dims` dimensions and what is given fits it; `outs` by name."""
    check_variant(variant)
    if x.dim() not in dims:
        raise ValueError(f"`x` has shape {list(x.shape)}; pass [tokens, hidden]")
    require_shape("residual", residual, x.shape, "the shape of `x`")
    require_like("residual", residual, "x", x)
    require_dense_rows("residual", residual)
    for name, out in outs.items():
        if out is not None:
            require_out(name, out, "x", x)
    if scale is not None:
        require_shape("scale", scale, (1,), "one number for all rows")
        require_like("scale", scale, "x", x)
