"""Weights of four and eight bits: dense layers, the embedding, and experts.

checks.py      each format of a model's weights
launches.py    every configuration that ships
"""

from infer_kernels.checks.cases.op_cases import OpCases
from infer_kernels.checks.cases.quantized.checks import quantized_checks
from infer_kernels.checks.cases.quantized.launches import quantized_launches

__all__ = ["QUANTIZED"]

QUANTIZED = OpCases(
    ops=("embedding_quantized", "linear_quantized", "linear_fp8", "quantize_rows_fp8", "fused_moe_quantized"),
    checks=quantized_checks,
    launches=quantized_launches,
)
