"""Dense layers. Knows a weight matrix; knows no kernel of its own: both devices' libraries are faster.

    y = x @ weight.T + bias

Bytes moved: at few tokens the weight's, [out_features, in_features] * itemsize; at many the layer is bound by compute.

Precision: the library's (fp32 accumulation of bf16 and fp16 products, one rounding).
"""

from torch import Tensor
from torch.nn import functional

from infer_kernels.checks import require_like, require_rank, require_shape


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """A dense layer over the last dimension.

    Args:
        x: [..., in_features].
        weight: [out_features, in_features], of the dtype and device of `x`.
        bias: [out_features], or None.

    Returns:
        [..., out_features], like `x`. Differentiable.

    Raises:
        ValueError: a shape or device does not fit.
        TypeError: a dtype does not fit.
    """
    require_rank("weight", weight, "out_features, in_features")
    require_like("weight", weight, "x", x)
    if x.dim() == 0 or x.shape[-1] != weight.shape[1]:
        raise ValueError(
            f"`x` has shape {list(x.shape)}; pass [..., {weight.shape[1]}], as many as `weight` has columns"
        )
    if bias is not None:
        require_shape("bias", bias, (weight.shape[0],), "as many as `weight` has rows")
        require_like("bias", bias, "x", x)
    return functional.linear(x, weight, bias)
