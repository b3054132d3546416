"""`PackedWeight`: a dense layer's weight in panels of 32 outputs, the order in which the C++ product reads it."""

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

PANEL = 32
"""Outputs of a panel; as in `csrc/product.h`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PackedWeight:
    """A weight [out_features, in_features] that only `linear` and `linear_invariant` can read.

    Attributes:
        panels: bf16 [panels, pairs of inputs, 32, 2]; fp16 and fp32 [panels, inputs, 32, 1]. What is beyond the last
            output or input is zero.
        out_features: outputs.
        in_features: inputs.
    """

    panels: Tensor
    out_features: int
    in_features: int

    @property
    def dtype(self) -> torch.dtype:
        """That of the weight."""
        return self.panels.dtype

    @property
    def device(self) -> torch.device:
        """The CPU."""
        return self.panels.device


def pack(weight: Tensor) -> PackedWeight:
    """Return a packed copy of `weight` [out_features, in_features]."""
    out_features, in_features = weight.shape
    together = 2 if weight.dtype == torch.bfloat16 else 1
    num_panels, num_inputs = -(-out_features // PANEL), -(-in_features // together)
    panels = weight.new_empty((num_panels, num_inputs, PANEL, together))
    # A few panels at a time: the padded copy stays small.
    for first in range(0, num_panels, 64):
        rows = weight[first * PANEL : (first + 64) * PANEL]
        missing = -rows.shape[0] % PANEL
        if missing or in_features % together:
            rows = functional.pad(rows, (0, num_inputs * together - in_features, 0, missing))
        panels[first : first + 64] = rows.view(-1, PANEL, num_inputs, together).transpose(1, 2)
    return PackedWeight(panels=panels, out_features=out_features, in_features=in_features)
