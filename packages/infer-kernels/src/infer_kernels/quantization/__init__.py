"""Weights of four and eight bits: what they hold, and how numbers become them. Knows numbers; knows no checkpoint."""

from infer_kernels.quantization.code_packing import pack_pairs, pack_sixes, unpack_pairs
from infer_kernels.quantization.encodings import ENCODINGS, INT4_ZERO, INT6_ZERO, Encoding
from infer_kernels.quantization.quantized_weight import QuantizedWeight
from infer_kernels.quantization.rounding import NotFiniteError, quantize_fp8, quantize_int4, quantize_int8
from infer_kernels.quantization.tile_microscaled import tile_microscaled

__all__ = [
    "ENCODINGS",
    "INT4_ZERO",
    "INT6_ZERO",
    "Encoding",
    "NotFiniteError",
    "QuantizedWeight",
    "pack_pairs",
    "pack_sixes",
    "quantize_fp8",
    "quantize_int4",
    "quantize_int8",
    "tile_microscaled",
    "unpack_pairs",
]
