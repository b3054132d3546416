"""RMSNorm, then residual add, in one pass: what follows a sublayer in OLMo 2 and 3.

    new_residual = residual + rms_norm(x, weight)        (times `scale`, where one is given)

Bytes moved: x and residual read, new_residual written: 3 * tokens * hidden * itemsize (unfused: 5).

Precision: the norm has the rounding of its variant (see `rms_norm`); the sum is taken in fp32 of rounded operands and
rounded to the dtype of `x`; so is its product with the scale. So the result is what separate ops give.
"""

from torch import Tensor

from infer_kernels.dispatch import takes_triton
from infer_kernels.norm.residual_norms import check_residual, residual_norms
from infer_kernels.norm.rms_norm import NormVariant, check_norm, rms_norm_reference


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
    check_residual(x, residual, variant, scale=scale, dims=(2, 3), out=out)
    if x.dim() == 3 and takes_triton(x, residual, weight):
        flat = x.flatten(0, 1), residual.flatten(0, 1)
        rows = norm_add(*flat, weight, eps, variant=variant, scale=scale).view(x.shape)
        return rows if out is None else out.copy_(rows)
    return residual_norms(x, residual, eps, post_weight=weight, scale=scale, variant=variant, residual_out=out)[1]
