"""`RotaryTable`: the cosines and sines of every position."""

import torch
from torch import Tensor, nn

from infer_kernels import Rotary
from infer_models.config.rope import RopeParameters
from infer_models.layers.parameters import ParameterFactory


class RotaryTable(nn.Module):
    """cos(p * f) and sin(p * f) of every position p and frequency f, computed once in fp32.

    Frequencies and angles are rounded to fp32 where training rounds them: at position 100,000 the last bit of a
    frequency is worth a hundredth of a radian. Su et al., "RoFormer", 2021.
    """

    cos_sin: Tensor

    def __init__(self, factory: ParameterFactory, rope: RopeParameters, *, head_dim: int, max_positions: int) -> None:
        """Fill `cos_sin`, fp32 [max_positions, head_dim]: the cosines of the head_dim / 2 angles, then the sines."""
        super().__init__()
        exponents = torch.arange(0, head_dim, 2, dtype=torch.float32) / head_dim
        inv_freq = rope.scaling.scale(1.0 / rope.theta**exponents).to(factory.device)
        positions = torch.arange(max_positions, dtype=torch.float32, device=factory.device)
        cos_sin = torch.empty(max_positions, head_dim, dtype=torch.float32, device=factory.device)
        cos, sin = cos_sin.chunk(2, dim=-1)
        angles = torch.outer(positions, inv_freq)
        torch.cos(angles, out=cos)
        torch.sin(angles, out=sin)
        self.register_buffer("cos_sin", cos_sin, persistent=False)

    def forward(self, position_ids: Tensor) -> Rotary:
        """Return the rotation of tokens at `position_ids`, [tokens]."""
        return Rotary(position_ids=position_ids, cos_sin=self.cos_sin)
