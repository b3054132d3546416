"""Dense layers, fast or batch-invariant, alone or with what surrounds them. Knows a weight matrix; knows no model."""

from infer_kernels.dense.fused_products import FusedProducts, SeparateProducts, apply_pending_norm
from infer_kernels.dense.fused_products_triton import PendingNorm
from infer_kernels.dense.linear import linear, prepack
from infer_kernels.dense.linear_argmax import linear_argmax
from infer_kernels.dense.linear_invariant import linear_invariant
from infer_kernels.dense.quantized import has_quantized_kernel

__all__ = [
    "FusedProducts",
    "PendingNorm",
    "SeparateProducts",
    "apply_pending_norm",
    "has_quantized_kernel",
    "linear",
    "linear_argmax",
    "linear_invariant",
    "prepack",
]
