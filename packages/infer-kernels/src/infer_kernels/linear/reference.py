"""The product of a dense layer, in plain fp32 PyTorch."""

from torch import Tensor


def linear_reference(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """Return x [..., in_features] @ weight.T + bias, rounded once to the dtype of `x`. Differentiable."""
    y = x.float() @ weight.float().T
    return (y if bias is None else y + bias.float()).to(x.dtype)
