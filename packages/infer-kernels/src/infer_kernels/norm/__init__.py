"""RMSNorm, alone and fused with residual adds. Knows rows; knows no layer."""

from infer_kernels.norm.add_rms_norm import add_rms_norm
from infer_kernels.norm.gated_rms_norm import gated_rms_norm
from infer_kernels.norm.norm_add import norm_add
from infer_kernels.norm.norm_add_norm import norm_add_norm
from infer_kernels.norm.rms_norm import NormVariant, rms_norm
from infer_kernels.norm.rms_norm_of_gated import rms_norm_of_gated
from infer_kernels.norm.sharded_rms_norm import sharded_rms_norm, sum_of_squares

__all__ = [
    "NormVariant",
    "add_rms_norm",
    "gated_rms_norm",
    "norm_add",
    "norm_add_norm",
    "rms_norm",
    "rms_norm_of_gated",
    "sharded_rms_norm",
    "sum_of_squares",
]
