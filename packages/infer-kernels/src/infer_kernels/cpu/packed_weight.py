"""`PackedWeight`: a dense layer's weight in panels of 32 outputs, the order in which the C++ product reads it.

`PackedExperts`: those of all experts of a mixture. `PackedQuantizedWeight` and `PackedQuantizedExperts`: the same of
weights of four to eight bits.
"""

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from infer_kernels.integers import cdiv

PANEL = 32
"""Outputs of a panel; as in `csrc/product.h`."""


def panels_shape(out_features: int, in_features: int, dtype: torch.dtype) -> tuple[int, int, int, int]:
    """Return the shape of a weight's panels."""
    together = 2 if dtype == torch.bfloat16 else 1
    return cdiv(out_features, PANEL), cdiv(in_features, together), PANEL, together


class QuantizedLayout(NamedTuple):
    """The order of a weight's panels in memory: the struct of that name in `csrc/quantized_layout.h`.

    Attributes:
        inputs: inputs of the weight.
        group_size: inputs with one scale.
        encoding: the number of the encoding's panels in `panel_kinds`.
        beside: what else a group has: 0 nothing, 1 zeros, 2 minimums.
        scales: the type of scales: 0 fp32, 1 fp16, 2 int8 with factors.
    """

    inputs: int
    group_size: int
    encoding: int
    beside: int
    scales: int


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
        layout: how they lie in memory.
    """

    layout: QuantizedLayout


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
