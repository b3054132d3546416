"""Weights of four and eight bits: what they hold, and how numbers become them. Knows numbers; knows no checkpoint."""

from infer_kernels.quantization.quantized_weight import (
    E2M1_VALUES,
    INT4_ZERO,
    Encoding,
    QuantizedWeight,
    pack_pairs,
)
from infer_kernels.quantization.rounding import NotFiniteError, quantize_fp8, quantize_int4, quantize_int8
from infer_kernels.quantization.tile_microscaled import tile_microscaled

__all__ = [
    "E2M1_VALUES",
    "INT4_ZERO",
    "Encoding",
    "NotFiniteError",
    "QuantizedWeight",
    "pack_pairs",
    "quantize_fp8",
    "quantize_int4",
    "quantize_int8",
    "tile_microscaled",
]
