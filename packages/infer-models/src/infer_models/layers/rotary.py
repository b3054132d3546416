"""Rotary tables: the cosines and sines of every position."""

import torch
from torch import Tensor, nn

from infer_kernels import Rotary
from infer_models.config import ModelConfig
from infer_models.config.rope import RopeParameters
from infer_models.layers.parameters import ParameterFactory

ROWS_AT_ONCE = 8192
"""Rows of a table that are computed in fp64 at once: all of a long sequence's would take memory."""


class RotaryTable(nn.Module):
    """cos(p * f) and sin(p * f) of every position p and frequency f, computed once.

    Frequencies and angles are rounded to fp32 where training rounds them: at position 100,000 the last bit of a
    frequency is worth a hundredth of a radian. Su et al., "RoFormer", 2021. Cosines and sines are those of fp64,
    rounded: PyTorch's of fp32 differ in the last bit between kinds of CPU, and then so may the choice of a token.

    Where long sequences have other frequencies than short ones, the rows of long ones follow those of short ones:

        row      0 ... short_length - 1    short_length ...
        position 0 ... short_length - 1    0 ... max_positions - 1
    """

    cos_sin: Tensor

    def __init__(
        self,
        factory: ParameterFactory,
        rope: RopeParameters,
        *,
        head_dim: int,
        max_positions: int,
        short_length: int | None,
    ) -> None:
        """Fill `cos_sin`, fp32 [rows, rotary_dim]: cosines of the rotary_dim / 2 angles, then the sines.

        Args:
            factory: has the device.
            rope: the frequencies.
            head_dim: elements of a head.
            max_positions: the longest sequence, in tokens.
            short_length: the longest of the short sequences, in tokens; None: there are no rows for long ones.
        """
        super().__init__()
        rotary_dim = rope.rotary_dim or head_dim
        periods = rope.theta ** (torch.arange(0, rotary_dim, 2, dtype=torch.float32) / rotary_dim)
        lengths = [max_positions] if short_length is None else [short_length, max_positions]
        cos_sin = torch.empty(sum(lengths), rotary_dim, dtype=torch.float32, device=factory.device)
        for is_long, rows in enumerate(torch.split(cos_sin, lengths)):
            inv_freq = rope.scaling.frequencies(periods, theta=rope.theta, is_long=bool(is_long)).to(factory.device)
            positions = torch.arange(len(rows), dtype=torch.float32, device=factory.device)
            for some, at in zip(torch.split(rows, ROWS_AT_ONCE), torch.split(positions, ROWS_AT_ONCE), strict=True):
                cos, sin = some.chunk(2, dim=-1)
                angles = torch.outer(at, inv_freq).double()
                cos.copy_(angles.cos())
                sin.copy_(angles.sin())
        if rope.scaling.attention_factor != 1.0:
            cos_sin *= rope.scaling.attention_factor
        self.register_buffer("cos_sin", cos_sin, persistent=False)

    def forward(self, position_ids: Tensor) -> Rotary:
        """Return the rotation of tokens at the rows `position_ids`, [tokens]."""
        return Rotary(position_ids=position_ids, cos_sin=self.cos_sin)


class RotaryTables(nn.Module):
    """A table for each kind of rotation that a model's layers have.

    Attributes:
        short_length: the longest sequence, in tokens, whose rows begin at 0; those of longer ones begin at this row.
            None: those of all sequences begin at 0.
    """

    def __init__(self, config: ModelConfig, factory: ParameterFactory) -> None:
        """Compute the tables of `config`."""
        super().__init__()
        ropes = [rope for rope in dict.fromkeys(config.ropes) if rope is not None]
        max_positions = factory.max_positions(config)
        short_length = config.short_length
        self.short_length = None if short_length is None or max_positions <= short_length else short_length
        self.tables = nn.ModuleList(
            RotaryTable(
                factory, rope, head_dim=config.head_dim, max_positions=max_positions, short_length=self.short_length
            )
            for rope in ropes
        )
        self.table_of_layer = [None if rope is None else ropes.index(rope) for rope in config.ropes]

    def forward(self, position_ids: Tensor) -> list[Rotary | None]:
        """Return each layer's rotation of tokens at the rows `position_ids`, [tokens]; None where it has none."""
        rotaries: list[Rotary] = [table(position_ids) for table in self.tables]
        return [None if table is None else rotaries[table] for table in self.table_of_layer]
