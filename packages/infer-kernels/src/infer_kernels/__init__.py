"""LLM inference kernels in Triton, each beside its PyTorch reference. Knows flat batches of tokens; knows no model.

Every op takes flat batches (`tokens` rows, no padding), computes in fp32 and rounds where its module says. On CUDA
tensors it runs its Triton kernel, elsewhere (and wherever a gradient is wanted) plain PyTorch.
"""

from infer_kernels.add_rms_norm import add_rms_norm, add_rms_norm_reference
from infer_kernels.attention import (
    AttentionPlan,
    causal_attention,
    paged_attention,
    paged_attention_reference,
    plan_attention,
)
from infer_kernels.gated import (
    gelu_tanh_and_mul,
    gelu_tanh_and_mul_reference,
    silu_and_mul,
    silu_and_mul_reference,
)
from infer_kernels.linear import linear, prepack
from infer_kernels.norm_add_norm import norm_add_norm, norm_add_norm_reference
from infer_kernels.rms_norm import NormVariant, rms_norm, rms_norm_reference
from infer_kernels.rope import apply_rope, apply_rope_reference
from infer_kernels.store_kv import store_kv, store_kv_reference

__all__ = [
    "AttentionPlan",
    "NormVariant",
    "add_rms_norm",
    "add_rms_norm_reference",
    "apply_rope",
    "apply_rope_reference",
    "causal_attention",
    "gelu_tanh_and_mul",
    "gelu_tanh_and_mul_reference",
    "linear",
    "norm_add_norm",
    "norm_add_norm_reference",
    "paged_attention",
    "paged_attention_reference",
    "plan_attention",
    "prepack",
    "rms_norm",
    "rms_norm_reference",
    "silu_and_mul",
    "silu_and_mul_reference",
    "store_kv",
    "store_kv_reference",
]
