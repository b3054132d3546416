"""Residual add, then RMSNorm, in one pass.

    new_residual = x + residual
    normalized       = rms_norm(new_residual, weight)

Bytes moved: x and residual read, new_residual and normalized written: 4 * tokens * hidden * itemsize (unfused: 5).

Precision: the sum is taken in fp32 and rounded to the dtype of `x`; the norm reads the rounded sum, with the rounding
of its variant (see `rms_norm`). So the result is what two separate ops give.
"""

from torch import Tensor

from infer_kernels.norm.residual_norms import check_residual, residual_norms
from infer_kernels.norm.rms_norm import NormVariant, check_norm, rms_norm_reference


def add_rms_norm_reference(
    x: Tensor, residual: Tensor, weight: Tensor, eps: float, *, variant: NormVariant = "llama"
) -> tuple[Tensor, Tensor]:
    """(normalized, new_residual) in plain fp32 PyTorch; arguments as for `add_rms_norm`. Differentiable."""
    new_residual = (x.float() + residual.float()).to(x.dtype)
    return rms_norm_reference(new_residual, weight, eps, variant=variant), new_residual


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
    check_residual(x, residual, variant, out=out, residual_out=residual_out)
    return residual_norms(x, residual, eps, next_weight=weight, variant=variant, out=out, residual_out=residual_out)
