"""Random experts and routings for tests of mixtures of experts."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class Experts:
    """A layer of experts and the arguments of one call, as `fused_moe` takes them.

    Attributes:
        x: [tokens, hidden].
        gate_up: [experts, 2 * intermediate, hidden].
        down: [experts, hidden, intermediate].
        expert_ids: [tokens, experts_per_token] int32.
        expert_weights: [tokens, experts_per_token] fp32.
        gate_up_bias: [experts, 2 * intermediate].
        down_bias: [experts, hidden].
    """

    x: Tensor
    gate_up: Tensor
    down: Tensor
    expert_ids: Tensor
    expert_weights: Tensor
    gate_up_bias: Tensor
    down_bias: Tensor

    @property
    def arguments(self) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
        """The positional arguments of `fused_moe`."""
        return self.x, self.gate_up, self.down, self.expert_ids, self.expert_weights

    @property
    def biases(self) -> dict[str, Any]:
        """The biases by the names of `fused_moe`."""
        return {"gate_up_bias": self.gate_up_bias, "down_bias": self.down_bias}


def random_experts(
    *,
    tokens: int,
    experts: int,
    experts_per_token: int,
    hidden: int,
    intermediate: int,
    dtype: torch.dtype,
    seed: int = 0,
) -> Experts:
    """Return experts that keep the size of what they compute, and tokens that prefer the lower ids."""
    generator = torch.Generator().manual_seed(seed)

    def draw(*shape: int, scale: float = 1.0) -> Tensor:
        return (torch.randn(*shape, generator=generator) * scale).to(dtype)

    preferences = torch.randn(tokens, experts, generator=generator) - torch.linspace(0.0, 2.0, experts)
    chosen = preferences.topk(experts_per_token, dim=-1)
    return Experts(
        x=draw(tokens, hidden),
        gate_up=draw(experts, 2 * intermediate, hidden, scale=hidden**-0.5),
        down=draw(experts, hidden, intermediate, scale=intermediate**-0.5),
        expert_ids=chosen.indices.int(),
        expert_weights=chosen.values.softmax(dim=-1),
        gate_up_bias=draw(experts, 2 * intermediate, scale=0.3),
        down_bias=draw(experts, hidden, scale=0.3),
    )
