"""The gate between an expert's two products.

With gate, up the halves of a row:

    gate = min(gate, limit),  up = min(max(up, -limit), limit)
    y = function(gate) * (up + up_offset)

The function is silu(gate) = gate * sigmoid(alpha * gate), or gelu_tanh as of `gelu_tanh_and_mul`.

`silu_and_mul` is alpha 1 without a limit or an offset. gpt-oss clamps and adds one to the ups: `GptOssExperts` of
`transformers`.

Precision: the function is computed in fp32 and rounded to the storage dtype, then multiplied by the fp32 sum and
rounded again: the rounding points of `silu_and_mul`.
"""

# ruff: noqa: N803 - compile-time arguments of kernels are upper case, as Triton writes them

import math
from dataclasses import dataclass
from typing import Literal, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from infer_kernels.gated_activations import GatedActivation, activate_rows, gelu_tanh_triton
from infer_kernels.optional_triton import tl, triton


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpertActivation:
    """The numbers of the formula above.

    Attributes:
        function: what is computed of the gate.
        alpha: multiplies the gate inside the sigmoid of "silu"; positive.
        limit: limit of the gate from above, and of the up from both sides; positive.
        up_offset: added to the up.
    """

    function: GatedActivation = "silu"
    alpha: float = 1.0
    limit: float = math.inf
    up_offset: float = 0.0

    def __post_init__(self) -> None:
        """Check the numbers.

        Raises:
            ValueError: `alpha` or `limit` is not positive, or `alpha` not finite.
        """
        if not 0.0 < self.alpha < math.inf:
            raise ValueError(f"`alpha` is {self.alpha}; pass a positive number")
        if not self.limit > 0.0:
            raise ValueError(f"`limit` is {self.limit}; pass a positive number, or infinity for none")


ActivationName = Literal["silu_and_mul", "gelu_tanh_and_mul", "clamped_swiglu"]

ACTIVATIONS: dict[ActivationName, ExpertActivation] = {
    "silu_and_mul": ExpertActivation(),
    "gelu_tanh_and_mul": ExpertActivation(function="gelu_tanh"),
    "clamped_swiglu": ExpertActivation(alpha=1.702, limit=7.0, up_offset=1.0),
}
"""By name; the last with the numbers of gpt-oss."""


def choose_activation(activation: ActivationName | ExpertActivation) -> ExpertActivation:
    """Return the numbers of an activation.

    Raises:
        ValueError: there is none of this name.
    """
    if isinstance(activation, ExpertActivation):
        return activation
    if activation not in ACTIVATIONS:
        raise ValueError(f"`activation` is {activation!r}; pass one of {list(ACTIVATIONS)} or a `ExpertActivation`")
    return ACTIVATIONS[activation]


def activate_reference(gate_up: Tensor, activation: ExpertActivation) -> Tensor:
    """The formula on gate_up [..., 2 * intermediate], in plain fp32 PyTorch. Differentiable."""
    gate, up = gate_up.float().chunk(2, dim=-1)
    gate, up = gate.clamp(max=activation.limit), up.clamp(-activation.limit, activation.limit)
    if activation.function == "gelu_tanh":
        numbers = functional.gelu(gate, approximate="tanh")
    else:
        numbers = gate * torch.sigmoid(activation.alpha * gate)
    activated = numbers.to(gate_up.dtype)
    return (activated.float() * (up + activation.up_offset)).to(gate_up.dtype)


def activate_torch(gate_up: Tensor, activation: ExpertActivation) -> Tensor:
    """The formula on gate_up [rows, 2 * intermediate]; a row's bits do not depend on the others. Differentiable."""
    numbers = gate_up.float()
    # Activations have a form that computes by whole rows, of a view that lies apart: the rows of a contiguous tensor
    # would be computed as one. That of silu has no alpha: alpha * gate * sigmoid(alpha * gate) / alpha.
    alpha = activation.alpha if activation.function == "silu" else 1.0
    scaled, _ = (numbers.clamp(max=activation.limit) * alpha).chunk(2, dim=-1)
    activated = (activate_rows(scaled, activation.function) / alpha).to(gate_up.dtype)
    _, up = numbers.clamp(-activation.limit, activation.limit).chunk(2, dim=-1)
    return (activated.float() * (up + activation.up_offset)).to(gate_up.dtype)


class ActivationNumbers(NamedTuple):
    """The numbers of an `ExpertActivation` in a kernel.

    Attributes:
        alpha: factor in silu's sigmoid.
        limit: bound of gates from above, and of ups from both sides.
        up_offset: added to ups.
    """

    alpha: tl.tensor
    limit: tl.tensor
    up_offset: tl.tensor


@triton.jit
def clamped(
    values: tl.tensor,  # fp32
    least: tl.tensor,
    most: tl.tensor,
) -> tl.tensor:
    """Values within bounds; NaN stays."""
    return tl.where(values < least, least, tl.where(values > most, most, values))


@triton.jit
def activate(
    gate: tl.tensor,  # fp32
    up: tl.tensor,  # fp32
    numbers: ActivationNumbers,
    dtype: tl.constexpr,  # of the storage
    GELU: tl.constexpr,
) -> tl.tensor:
    """The formula in fp32, still to be rounded to `dtype`, with the rounding points above."""
    gate, up = gate.to(dtype).to(tl.float32), up.to(dtype).to(tl.float32)
    gate, up = clamped(gate, float("-inf"), numbers.limit), clamped(up, -numbers.limit, numbers.limit)
    activated = gelu_tanh_triton(gate) if GELU else gate * tl.sigmoid(numbers.alpha * gate)
    return activated.to(dtype).to(tl.float32) * (up + numbers.up_offset)
