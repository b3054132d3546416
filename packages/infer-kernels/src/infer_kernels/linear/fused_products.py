"""Dense layers of a decoder with what surrounds them: the norm before, a gate, the residual stream and its norm after.

    linear            y = x @ weight.T + bias
    gated_linear      y = activation(gates) * ups,      [gates, ups] = x @ weight.T + bias
    linear_add_norm   new_residual = residual + x @ weight.T + bias,  normalized = rms_norm(new_residual, norm_weight)

`SeparateProducts` computes each part by an op of its own. `FusedProducts` does so too, but for at most 16 rows in bf16
or fp16 on CUDA, where a decoder's step is bound by the weights' bytes and by launches: there each of the three is one
launch. `linear_add_norm` leaves its norm, as a `PendingNorm`, to the products that read the rows.

Bytes moved: the weight's, [out_features, in_features] * itemsize; rows of x and partial sums come from L2: x once for
each 64 outputs, and 8 bytes for each row, output and part of the inputs.

Precision: the roundings of the separate ops: products are rounded before a gate or an addition, the sum with the
residual before its norm, and the norm as `rms_norm` says. Products are added in fp32, in parts of the inputs that
depend on the weight and the device alone; mean squares in parts of 64 elements. So results differ from those of the
separate ops by the order of sums, and a row's bits do not depend on the other rows, up to 16 of them.
"""

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Protocol

import torch
from torch import Tensor

from infer_kernels.arguments import require_dense_rows, require_like, require_rank, require_shape
from infer_kernels.dispatch import takes_triton
from infer_kernels.gated_activations import (
    GatedActivation,
    gelu_tanh_and_mul,
    gelu_tanh_and_mul_reference,
    silu_and_mul,
    silu_and_mul_reference,
)
from infer_kernels.linear.fused_products_triton import MAX_ROWS, MAX_TILES, PendingNorm, fused_product_triton
from infer_kernels.linear.linear import DenseWeight, linear
from infer_kernels.linear.quantized.multiply import multiply_quantized
from infer_kernels.linear.reference import linear_reference
from infer_kernels.norm.add_rms_norm import add_rms_norm, add_rms_norm_reference
from infer_kernels.norm.rms_norm import NormVariant, check_norm, check_variant, rms_norm
from infer_kernels.quantization.quantized_weight import QuantizedWeight

ActivationAndMul = Callable[[Tensor], Tensor]
"""Maps gates, then ups, [tokens, 2 * size], to [tokens, size]: `silu_and_mul`, `gelu_tanh_and_mul` or another."""

_FUSED_ACTIVATIONS: Mapping[ActivationAndMul, GatedActivation] = MappingProxyType(
    {silu_and_mul: "silu", gelu_tanh_and_mul: "gelu_tanh"}
)
_REFERENCES: Mapping[ActivationAndMul, ActivationAndMul] = MappingProxyType(
    {silu_and_mul: silu_and_mul_reference, gelu_tanh_and_mul: gelu_tanh_and_mul_reference}
)


class LinearFunction(Protocol):
    """The product of a dense layer: `linear` or `linear_invariant`."""

    def __call__(self, x: Tensor, weight: DenseWeight, bias: Tensor | None = None) -> Tensor:
        """Map x [tokens, in_features] to [tokens, out_features]."""


def gated_linear_reference(
    x: Tensor, weight: Tensor, bias: Tensor | None = None, *, activation_and_mul: ActivationAndMul
) -> Tensor:
    """`gated_linear` in plain fp32 PyTorch. Differentiable."""
    return _REFERENCES[activation_and_mul](linear_reference(x, weight, bias))


def linear_add_norm_reference(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    *,
    residual: Tensor,
    norm_weight: Tensor,
    eps: float,
    variant: NormVariant = "llama",
) -> tuple[Tensor, Tensor]:
    """`linear_add_norm` in plain fp32 PyTorch: (normalized, new_residual). Differentiable."""
    return add_rms_norm_reference(linear_reference(x, weight, bias), residual, norm_weight, eps, variant=variant)


def apply_pending_norm(x: Tensor | PendingNorm) -> Tensor:
    """Return the normalized rows [rows, hidden], for a reader that is no product; a tensor as it is."""
    return rms_norm(x.rows, x.weight, x.eps, variant=x.variant) if isinstance(x, PendingNorm) else x


class SeparateProducts:
    """A product is `linear` or `linear_invariant`, and what surrounds it ops of their own."""

    def __init__(self, linear: LinearFunction) -> None:
        """Multiply with `linear`."""
        self._linear = linear

    def linear(self, x: Tensor | PendingNorm, weight: DenseWeight, bias: Tensor | None = None) -> Tensor:
        """Do as `FusedProducts.linear`."""
        return self._linear(apply_pending_norm(x), weight, bias)

    def gated_linear(
        self,
        x: Tensor | PendingNorm,
        weight: DenseWeight,
        bias: Tensor | None = None,
        *,
        activation_and_mul: ActivationAndMul,
    ) -> Tensor:
        """Do as `FusedProducts.gated_linear`."""
        return activation_and_mul(self._linear(apply_pending_norm(x), weight, bias))

    def linear_add_norm(
        self,
        x: Tensor,
        weight: DenseWeight,
        bias: Tensor | None = None,
        *,
        residual: Tensor,
        norm_weight: Tensor,
        eps: float,
        variant: NormVariant = "llama",
    ) -> tuple[Tensor | PendingNorm, Tensor]:
        """Do as `FusedProducts.linear_add_norm`; the rows are always normalized."""
        return add_rms_norm(self._linear(x, weight, bias), residual, norm_weight, eps, variant=variant)


class FusedProducts:
    """Products of at most 16 rows in one launch each; others, and those of other weights, as `SeparateProducts`.

    One launch: x in bf16 or fp16 on CUDA with a multiple of 16 inputs, a plain weight like it, and no gradient wanted.
    It holds the semaphores of its launches, which must run one after another, on one stream. They are zeros between
    launches, replays of captured CUDA graphs among them.

    Attributes:
        semaphores: [MAX_TILES] int32, for launches that take turns with these.
    """

    def __init__(self, device: torch.device | str) -> None:
        """Serve weights on `device`."""
        self.semaphores = torch.zeros(MAX_TILES, dtype=torch.int32, device=device)
        self._separate = SeparateProducts(self._multiply)

    def linear(self, x: Tensor | PendingNorm, weight: DenseWeight, bias: Tensor | None = None) -> Tensor:
        """A dense layer.

        Args:
            x: [tokens, in_features].
            weight: [out_features, in_features], of the dtype and device of `x`; may be quantized, or come from
                `prepack`.
            bias: [out_features], or None.

        Returns:
            [tokens, out_features], like `x`.

        Raises:
            ValueError: a shape, device or stride does not fit.
            TypeError: a dtype does not fit.
        """
        if not self.takes(x, weight):
            return self._separate.linear(x, weight, bias)
        assert isinstance(weight, Tensor)
        check_product(x, weight, bias)
        return fused_product_triton(x, weight, bias, semaphores=self.semaphores)[0]

    def gated_linear(
        self,
        x: Tensor | PendingNorm,
        weight: DenseWeight,
        bias: Tensor | None = None,
        *,
        activation_and_mul: ActivationAndMul,
    ) -> Tensor:
        """A dense layer and its gate.

        Args:
            x: [tokens, in_features].
            weight: [2 * size, in_features], the gates, then the ups; otherwise as for `linear`.
            bias: [2 * size], or None.
            activation_and_mul: the gate; `silu_and_mul` and `gelu_tanh_and_mul` take no launch of their own.

        Returns:
            [tokens, size], like `x`.

        Raises:
            ValueError: a shape, device or stride does not fit.
            TypeError: a dtype does not fit.
        """
        activation = _FUSED_ACTIVATIONS.get(activation_and_mul)
        if activation is None or not self.takes(x, weight):
            return self._separate.gated_linear(x, weight, bias, activation_and_mul=activation_and_mul)
        assert isinstance(weight, Tensor)
        check_product(x, weight, bias)
        if weight.shape[0] % 2:
            raise ValueError(f"`weight` has {weight.shape[0]} rows; pass the gates, then as many ups")
        return fused_product_triton(x, weight, bias, semaphores=self.semaphores, activation=activation)[0]

    def linear_add_norm(
        self,
        x: Tensor,
        weight: DenseWeight,
        bias: Tensor | None = None,
        *,
        residual: Tensor,
        norm_weight: Tensor,
        eps: float,
        variant: NormVariant = "llama",
    ) -> tuple[Tensor | PendingNorm, Tensor]:
        """A dense layer, the addition to the residual stream, and the norm of the sum.

        Args:
            x: [tokens, in_features].
            weight: [hidden, in_features], as for `linear`.
            bias: [hidden], or None.
            residual: [tokens, hidden], like `x`.
            norm_weight: [hidden], of the dtype and device of `x`.
            eps: added to the mean square.
            variant: as for `rms_norm`.

        Returns:
            (normalized, new_residual), [tokens, hidden] each. The norm may be pending: `linear` and `gated_linear` take
            it so, and `apply_pending_norm` makes it a tensor.

        Raises:
            ValueError: a shape, device or stride does not fit.
            TypeError: a dtype does not fit.
        """
        if not self.takes(x, weight):
            return self._separate.linear_add_norm(
                x, weight, bias, residual=residual, norm_weight=norm_weight, eps=eps, variant=variant
            )
        assert isinstance(weight, Tensor)
        check_product(x, weight, bias)
        require_shape("residual", residual, (x.shape[0], weight.shape[0]), "the product's shape")
        require_like("residual", residual, "x", x)
        check_norm(residual, norm_weight, "norm_weight")
        check_variant(variant)
        total, squares = fused_product_triton(x, weight, bias, semaphores=self.semaphores, residual=residual)
        assert squares is not None
        return PendingNorm(rows=total, squares=squares, weight=norm_weight, eps=eps, variant=variant), total

    def _multiply(self, x: Tensor, weight: DenseWeight, bias: Tensor | None = None) -> Tensor:
        """Compute a layer alone; with a quantized weight that is divided over programs in one launch too."""
        if isinstance(weight, QuantizedWeight):
            return multiply_quantized(x, weight, bias, semaphores=self.semaphores)
        return linear(x, weight, bias)

    def takes(self, x: Tensor | PendingNorm, weight: DenseWeight) -> bool:
        """Whether a product with `weight` is one launch; if not, the separate ops also check it."""
        rows = x.rows if isinstance(x, PendingNorm) else x
        return (
            isinstance(weight, Tensor)
            and rows.dim() == weight.dim() == 2
            and 1 <= rows.shape[0] <= MAX_ROWS
            and rows.element_size() == 2
            and rows.dtype == weight.dtype
            and rows.shape[1] == weight.shape[1]
            and weight.shape[0] > 0
            and weight.shape[1] > 0
            and weight.shape[1] % 16 == weight.stride(0) % 16 == 0
            and rows.device == weight.device == self.semaphores.device
            and takes_triton(rows, weight)
        )


def check_product(x: Tensor | PendingNorm, weight: Tensor, bias: Tensor | None) -> None:
    """Raise unless x, or its rows, can be multiplied by `weight` and `bias` added."""
    rows = x.rows if isinstance(x, PendingNorm) else x
    require_rank("weight", weight, "out_features, in_features")
    require_dense_rows("weight", weight)
    require_dense_rows("x", rows)
    if bias is not None:
        require_shape("bias", bias, (weight.shape[0],), "as many as `weight` has rows")
        require_like("bias", bias, "x", rows)
        require_dense_rows("bias", bias)
