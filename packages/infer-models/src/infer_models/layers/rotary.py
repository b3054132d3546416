"""Rotary tables: the cosines and sines of every position."""

import torch
from torch import Tensor, nn

from infer_kernels import Rotary
from infer_models.config import ModelConfig
from infer_models.config.rope import RopeParameters
from infer_models.layers.parameters import ParameterFactory


class RotaryTable(nn.Module):
    """cos(p * f) and sin(p * f) of every position p and frequency f, computed once in fp32.

    Frequencies and angles are rounded to fp32 where training rounds them: at position 100,000 the last bit of a
    frequency is worth a hundredth of a radian. Su et al., "RoFormer", 2021.
    """

    cos_sin: Tensor

    def __init__(self, factory: ParameterFactory, rope: RopeParameters, *, head_dim: int, max_positions: int) -> None:
        """Fill `cos_sin`, fp32 [max_positions, rotary_dim]: cosines of the rotary_dim / 2 angles, then the sines."""
        super().__init__()
        rotary_dim = rope.rotary_dim or head_dim
        periods = rope.theta ** (torch.arange(0, rotary_dim, 2, dtype=torch.float32) / rotary_dim)
        inv_freq = rope.scaling.frequencies(periods, theta=rope.theta, max_positions=max_positions).to(factory.device)
        positions = torch.arange(max_positions, dtype=torch.float32, device=factory.device)
        cos_sin = torch.empty(max_positions, rotary_dim, dtype=torch.float32, device=factory.device)
        cos, sin = cos_sin.chunk(2, dim=-1)
        angles = torch.outer(positions, inv_freq)
        torch.cos(angles, out=cos)
        torch.sin(angles, out=sin)
        if rope.scaling.attention_factor != 1.0:
            cos_sin *= rope.scaling.attention_factor
        self.register_buffer("cos_sin", cos_sin, persistent=False)

    def forward(self, position_ids: Tensor) -> Rotary:
        """Return the rotation of tokens at `position_ids`, [tokens]."""
        return Rotary(position_ids=position_ids, cos_sin=self.cos_sin)


class RotaryTables(nn.Module):
    """A table for each kind of rotation that a model's layers have."""

    def __init__(self, config: ModelConfig, factory: ParameterFactory) -> None:
        """Compute the tables of `config`."""
        super().__init__()
        ropes = [rope for rope in dict.fromkeys(config.ropes) if rope is not None]
        max_positions = factory.max_positions(config)
        self.tables = nn.ModuleList(
            RotaryTable(factory, rope, head_dim=config.head_dim, max_positions=max_positions) for rope in ropes
        )
        self.table_of_layer = [None if rope is None else ropes.index(rope) for rope in config.ropes]

    def forward(self, position_ids: Tensor) -> list[Rotary | None]:
        """Return each layer's rotation of tokens at `position_ids`, [tokens]; None where it has none."""
        rotaries: list[Rotary] = [table(position_ids) for table in self.tables]
        return [None if table is None else rotaries[table] for table in self.table_of_layer]
