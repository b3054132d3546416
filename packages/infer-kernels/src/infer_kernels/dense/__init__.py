"""Dense layers, fast or batch-invariant. Knows a weight matrix; knows no model."""

from infer_kernels.dense.linear import linear, prepack
from infer_kernels.dense.linear_argmax import linear_argmax
from infer_kernels.dense.linear_invariant import linear_invariant
from infer_kernels.dense.quantized import has_quantized_kernel

__all__ = ["has_quantized_kernel", "linear", "linear_argmax", "linear_invariant", "prepack"]
