"""`PackedWeight`: a dense layer's weight in panels of 32 outputs, the order in which the C++ product reads it.

`PackedExperts`: those of all experts of a mixture. `PackedQuantizedWeight` and `PackedQuantizedExperts`: the same of
weights of four to eight bits.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from infer_kernels.integers import cdiv
from infer_kernels.quantization.encodings import Encoding

PANEL = 32
"""Outputs of a panel; as in `csrc/product.h`."""
ENCODINGS: dict[Encoding, int] = {"int8": 0, "int4": 1, "e2m1": 2, "mxfp4": 2, "nvfp4": 2, "int6": 3, "iq4": 4}
"""As in `csrc/quantized_layout.h`. Panels have fp32 scales: e2m1, mxfp4 and nvfp4 are one there."""
BESIDE = {"nothing": 0, "zeros": 1, "minimums": 2}
"""As in `csrc/quantized_layout.h`."""
SCALES = {torch.float32: 0, torch.float16: 1, torch.int8: 2}
"""Likewise."""
LAYOUT = "qqqqq"
"""`QuantizedLayout` of `csrc/quantized_layout.h`: what `layout_arguments` returns, as `struct` packs it."""


def panels_shape(out_features: int, in_features: int, dtype: torch.dtype) -> tuple[int, int, int, int]:
    """Return the shape of a weight's panels."""
    together = 2 if dtype == torch.bfloat16 else 1
    return cdiv(out_features, PANEL), cdiv(in_features, together), PANEL, together


@dataclass(frozen=True, slots=True, kw_only=True)
class Panels:
    """What all packed weights have.

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
    """Panels of codes, uint8 [..., panels, bytes of a panel]; see `csrc/quantized_layout.h`.

    Attributes:
        encoding: encoding of the codes.
        group_size: inputs that share a scale.
        beside: what each group has beside its scales, a value of `BESIDE`.
        scales: what scales and minimums are, a value of `SCALES`.
    """

    encoding: Encoding
    group_size: int
    beside: int
    scales: int


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


def layout_arguments(weight: QuantizedPanels) -> tuple[int, int, int, int, int]:
    """Return the fields of `QuantizedLayout` in `csrc/quantized_layout.h`."""
    return weight.in_features, weight.group_size, ENCODINGS[weight.encoding], weight.beside, weight.scales
