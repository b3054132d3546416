"""RMSNorm, residual add, RMSNorm, in one pass: the sandwich of Gemma 3.

    new_residual = residual + rms_norm(x, post_weight)       (times `scale`, where one is given)
    normalized       = rms_norm(new_residual, next_weight)

Bytes moved: x and residual read, new_residual and normalized written: 4 * tokens * hidden * itemsize (unfused: 7).

Precision: each norm has the rounding of its variant (see `rms_norm`); the sum is taken in fp32 of rounded operands and
rounded to the dtype of `x`, as is its product with the scale; the second norm reads the rounded sum. So the result is
what separate ops give.
"""

from torch import Tensor

from infer_kernels.norm.residual_norms import check_residual, residual_norms
from infer_kernels.norm.rms_norm import NormVariant, check_norm, rms_norm_reference


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
    check_residual(x, residual, variant, scale=scale, out=out, residual_out=residual_out)
    return residual_norms(
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
