"""Weights of four and eight bits: what they hold, how numbers become them, and their products with inputs.

Knows numbers; knows no checkpoint. The `..._triton` and `..._torch` functions are what the public ops of
`infer_kernels` run where a weight is quantized: they take checked arguments.
"""

from infer_kernels.quantization.embedding_quantized import embedding_quantized_torch, embedding_quantized_triton
from infer_kernels.quantization.linear_fp8 import (
    linear_fp8_torch,
    linear_fp8_triton,
    quantize_rows_fp8_triton,
    takes_fp8_products,
)
from infer_kernels.quantization.linear_quantized import linear_quantized_torch, linear_quantized_triton
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
    "embedding_quantized_torch",
    "embedding_quantized_triton",
    "linear_fp8_torch",
    "linear_fp8_triton",
    "linear_quantized_torch",
    "linear_quantized_triton",
    "pack_pairs",
    "quantize_fp8",
    "quantize_int4",
    "quantize_int8",
    "quantize_rows_fp8_triton",
    "takes_fp8_products",
    "tile_microscaled",
]
