"""Dense layers, fast or batch-invariant, alone or with what surrounds them. Knows a weight matrix; knows no model."""

from infer_kernels.linear.fused_products import FusedProducts, SeparateProducts, apply_pending_norm
from infer_kernels.linear.fused_products_triton import PendingNorm
from infer_kernels.linear.linear import linear, prepack
from infer_kernels.linear.linear_argmax import linear_argmax
from infer_kernels.linear.linear_invariant import linear_invariant
from infer_kernels.linear.quantized.multiply import has_quantized_kernel

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
