"""Norms over the hidden state; some are fused with an addition to the residual stream."""

from typing import Protocol

from torch import Tensor, nn
from torch.nn import functional

from infer_kernels import NormVariant, Routing, add_rms_norm, gated_rms_norm, norm_add, norm_add_norm, rms_norm
from infer_models.layers.parameters import DenseWeight, LayerInput, ParameterFactory, Products


class ExpertsSum(Protocol):
    """The weighted sum of each row's experts, alone or with the residual stream and its norm."""

    def __call__(self, routing: Routing) -> Tensor:
        """Return the sum, [tokens, size]."""

    def fused_add_norm(
        self, routing: Routing, *, residual: Tensor, norm_weight: Tensor, eps: float, variant: NormVariant
    ) -> tuple[LayerInput, Tensor]:
        """Return (rms_norm(total), total) with total = residual + the sum, both [tokens, size]."""


class RMSNorm(nn.Module):
    """Root-mean-square norm; `variant` says how the weight is applied (see `infer_kernels.rms_norm`)."""

    def __init__(self, factory: ParameterFactory, size: int, eps: float, *, variant: NormVariant = "llama") -> None:
        """Normalize over a last dimension of `size` elements."""
        super().__init__()
        self.eps = eps
        self.variant: NormVariant = variant
        self.weight = factory.vector(size, fill=1.0 if variant == "llama" else 0.0)

    def forward(self, x: Tensor) -> Tensor:
        """Map x [..., size] to the same shape."""
        return rms_norm(x, self.weight, self.eps, variant=self.variant)

    def add_norm(self, x: Tensor, residual: Tensor) -> tuple[Tensor, Tensor]:
        """Return (norm(x + residual), x + residual), both [tokens, size]."""
        return add_rms_norm(x, residual, self.weight, self.eps, variant=self.variant)

    def add_product(
        self, products: Products, x: Tensor, weight: DenseWeight, bias: Tensor | None, residual: Tensor
    ) -> tuple[LayerInput, Tensor]:
        """Return (norm(sum), sum) with sum = residual + x @ weight.T + bias, both [tokens, size]."""
        return products.linear_add_norm(
            x, weight, bias, residual=residual, norm_weight=self.weight, eps=self.eps, variant=self.variant
        )

    def add_experts(self, experts: ExpertsSum, routing: Routing, residual: Tensor) -> tuple[LayerInput, Tensor]:
        """Return (norm(sum), sum) with sum = residual + experts(routing), both [tokens, size]."""
        return experts.fused_add_norm(
            routing, residual=residual, norm_weight=self.weight, eps=self.eps, variant=self.variant
        )

    def norm_add(self, x: Tensor, residual: Tensor, *, scale: Tensor | None = None) -> Tensor:
        """Return residual + norm(x), times `scale` [1] where one is given, [..., size]."""
        return norm_add(x, residual, self.weight, self.eps, variant=self.variant, scale=scale)

    def norm_add_norm(
        self, following: "RMSNorm", x: Tensor, residual: Tensor, *, scale: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """Return (following(sum), sum) with sum = residual + norm(x), times `scale` [1]; both [tokens, size]."""
        weights = self.weight, following.weight
        return norm_add_norm(x, residual, *weights, self.eps, variant=self.variant, scale=scale)


class GatedRMSNorm(nn.Module):
    """RMS norm of each head, times SiLU of a gate; its weight is 1 where it changes nothing."""

    def __init__(self, factory: ParameterFactory, head_dim: int, eps: float) -> None:
        """Normalize heads of `head_dim` elements."""
        super().__init__()
        self.eps = eps
        self.weight = factory.vector(head_dim, fill=1.0)

    def forward(self, x: Tensor, gate: Tensor) -> Tensor:
        """Map x [tokens, heads, head_dim] and gate [tokens, heads * head_dim] to the shape of `gate`."""
        return gated_rms_norm(x, gate, self.weight, self.eps)


class LayerNorm(nn.Module):
    """Layer norm with weight and bias (Ba et al., 2016)."""

    def __init__(self, factory: ParameterFactory, size: int, eps: float) -> None:
        """Normalize over a last dimension of `size` elements."""
        super().__init__()
        self.eps = eps
        self.weight = factory.vector(size, fill=1.0)
        self.bias = factory.vector(size, fill=0.0)

    def forward(self, x: Tensor) -> Tensor:
        """Map x [..., size] to the same shape."""
        return functional.layer_norm(x, self.weight.shape, self.weight, self.bias, self.eps)

    def add_norm(self, x: Tensor, residual: Tensor) -> tuple[Tensor, Tensor]:
        """Return (norm(x + residual), x + residual), both [tokens, size]."""
        total = x + residual
        return self(total), total

    def add_product(
        self, products: Products, x: Tensor, weight: DenseWeight, bias: Tensor | None, residual: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Return (norm(sum), sum) with sum = residual + x @ weight.T + bias, both [tokens, size]."""
        return self.add_norm(products.linear(x, weight, bias), residual)

    def add_experts(self, experts: ExpertsSum, routing: Routing, residual: Tensor) -> tuple[Tensor, Tensor]:
        """Return (norm(sum), sum) with sum = residual + experts(routing), both [tokens, size]."""
        return self.add_norm(experts(routing), residual)
