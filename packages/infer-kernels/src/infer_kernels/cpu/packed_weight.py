"""`PackedWeight`: a dense layer's weight in panels of 32 outputs, the order in which the C++ product reads it.

`PackedExperts`: those of all experts of a mixture. `PackedQuantizedWeight` and `PackedQuantizedExperts`: the same of
weights of four to eight bits.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from infer_kernels.integers import cdiv

PANEL = 32
"""Outputs of a panel; as in `csrc/product.h`."""
LAYOUT = "qqqqq"
"""`QuantizedLayout` of `csrc/quantized_layout.h`, as `struct` packs it."""


def panels_shape(out_features: int, in_features: int, dtype: torch.dtype) -> tuple[int, int, int, int]:
    """Return the shape of a weight's panels."""
    together = 2 if dtype == torch.bfloat16 else 1
    return cdiv(out_features, PANEL), cdiv(in_features, together), PANEL, together


@dataclass(frozen=True, slots=True, kw_only=True)
class Panels:
    """The common part of all packed weights.

    Attributes:
        panels: on the CPU.
        out_features: outputs, of experts those of one.
        in_features: inputs, likewise.
    """

    panels: Tensor
    out_features: int
    in_features: int

    @property
    def device(self) -> torch.device:
        """The CPU."""
        return self.panels.device


@dataclass(frozen=True, slots=True, kw_only=True)
class _FloatPanels(Panels):
    """Panels of numbers."""

    @property
    def dtype(self) -> torch.dtype:
        """That of the weight."""
        return self.panels.dtype


@dataclass(frozen=True, slots=True, kw_only=True)
class QuantizedPanels(Panels):
    """Panels of codes, uint8 [..., panels, bytes of a panel].

    Attributes:
        layout: the fields of `QuantizedLayout` in `csrc/quantized_layout.h`.
    """

    layout: tuple[int, int, int, int, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class PackedWeight(_FloatPanels):
    """A weight [out_features, in_features] that only `linear` and `linear_invariant` can read.

    Its panels are bf16 [panels, pairs of inputs, 32, 2], or fp16 and fp32 [panels, inputs, 32, 1]. What is beyond the
    last output or input is zero.
    """


@dataclass(frozen=True, slots=True, kw_only=True)
class PackedExperts(_FloatPanels):
    """A weight [experts, out_features, in_features] that only `fused_moe` can read.

    Its panels are [experts, ...], each expert's as those of a `PackedWeight`.
    """


@dataclass(frozen=True, slots=True, kw_only=True)
class PackedQuantizedWeight(QuantizedPanels):
    """A quantized weight [out_features, in_features] that only dense layers and embeddings can read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PackedQuantizedExperts(QuantizedPanels):
    """A quantized weight [experts, out_features, in_features] that only `fused_moe` can read."""
