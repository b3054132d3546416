"""The gate between an expert's two products.

With gate, up the halves of a row:

    gate = min(gate, limit),  up = min(max(up, -limit), limit)
    y = gate * sigmoid(alpha * gate) * (up + up_offset)

`silu_and_mul` is alpha 1 without a limit or an offset. gpt-oss clamps and adds one to the ups: `GptOssExperts` of
`transformers`.

Precision: gate * sigmoid(alpha * gate) is computed in fp32 and rounded to the storage dtype, then multiplied by the
fp32 sum and rounded again: the rounding points of `silu_and_mul`.
"""

import math
from dataclasses import dataclass
from typing import Literal

import torch
import triton
import triton.language as tl
from torch import Tensor

from infer_kernels.gated_activations import activate_rows


@dataclass(frozen=True, slots=True, kw_only=True)
class SwiGLU:
    """The numbers of the formula above.

    Attributes:
        alpha: multiplies the gate inside the sigmoid; positive.
        limit: limit of the gate from above, and of the up from both sides; positive.
        up_offset: added to the up.
    """

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


ActivationName = Literal["silu_and_mul", "clamped_swiglu"]

ACTIVATIONS: dict[ActivationName, SwiGLU] = {
    "silu_and_mul": SwiGLU(),
    "clamped_swiglu": SwiGLU(alpha=1.702, limit=7.0, up_offset=1.0),
}
"""By name; the second with the numbers of gpt-oss."""


def choose_activation(activation: ActivationName | SwiGLU) -> SwiGLU:
    """Return the numbers of an activation.

    Raises:
        ValueError: there is none of this name.
    """
    if isinstance(activation, SwiGLU):
        return activation
    if activation not in ACTIVATIONS:
        raise ValueError(f"`activation` is {activation!r}; pass one of {list(ACTIVATIONS)} or a `SwiGLU`")
    return ACTIVATIONS[activation]


def activate_reference(gate_up: Tensor, activation: SwiGLU) -> Tensor:
    """The formula on gate_up [..., 2 * intermediate], in plain fp32 PyTorch. Differentiable."""
    gate, up = gate_up.float().chunk(2, dim=-1)
    gate, up = gate.clamp(max=activation.limit), up.clamp(-activation.limit, activation.limit)
    activated = (gate * torch.sigmoid(activation.alpha * gate)).to(gate_up.dtype)
    return (activated.float() * (up + activation.up_offset)).to(gate_up.dtype)


def activate_torch(gate_up: Tensor, activation: SwiGLU) -> Tensor:
    """The formula on gate_up [rows, 2 * intermediate]; a row's bits do not depend on the others. Differentiable."""
    numbers = gate_up.float()
    # alpha * gate * sigmoid(alpha * gate) / alpha: silu has a form that computes by whole rows, of a view that lies
    # apart: the rows of a contiguous tensor would be computed as one.
    scaled, _ = (numbers.clamp(max=activation.limit) * activation.alpha).chunk(2, dim=-1)
    activated = (activate_rows(scaled, "silu") / activation.alpha).to(gate_up.dtype)
    _, up = numbers.clamp(-activation.limit, activation.limit).chunk(2, dim=-1)
    return (activated.float() * (up + activation.up_offset)).to(gate_up.dtype)


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
    alpha: tl.tensor,
    limit: tl.tensor,
    up_offset: tl.tensor,
    dtype: tl.constexpr,  # of the storage
) -> tl.tensor:
    """The formula in fp32, still to be rounded to `dtype`, with the rounding points above."""
    gate, up = gate.to(dtype).to(tl.float32), up.to(dtype).to(tl.float32)
    gate, up = clamped(gate, float("-inf"), limit), clamped(up, -limit, limit)
    return (gate * tl.sigmoid(alpha * gate)).to(dtype).to(tl.float32) * (up + up_offset)
