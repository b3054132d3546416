"""LLM inference kernels in Triton, each beside its PyTorch reference. Knows flat batches of tokens; knows no model.

Every op takes flat batches (`tokens` rows, no padding), computes in fp32 and rounds where its module says. On CUDA
tensors it runs its Triton kernel, elsewhere (and wherever a gradient is wanted) plain PyTorch.
"""

from infer_kernels.add_rms_norm import add_rms_norm, add_rms_norm_reference
from infer_kernels.advance_decode import advance_decode, advance_decode_reference
from infer_kernels.attention import (
    AttentionBuffers,
    AttentionPlan,
    BagFiller,
    BagLayout,
    Bags,
    BagShape,
    DecodePlan,
    causal_attention,
    kv_cache_dtype,
    paged_attention,
    paged_attention_reference,
    plan_attention,
    wants_transposed_keys,
)
from infer_kernels.copy_blocks import copy_blocks, copy_blocks_reference
from infer_kernels.gated import (
    gelu_tanh_and_mul,
    gelu_tanh_and_mul_reference,
    silu_and_mul,
    silu_and_mul_reference,
)
from infer_kernels.gather_rows import gather_rows, gather_rows_reference
from infer_kernels.head_preparation import QKNorm, Rotary
from infer_kernels.linear import linear, prepack
from infer_kernels.linear_invariant import linear_invariant, linear_invariant_reference
from infer_kernels.norm_add_norm import norm_add_norm, norm_add_norm_reference
from infer_kernels.qk_norm_rope_store import qk_norm_rope_store, qk_norm_rope_store_reference
from infer_kernels.rms_norm import NormVariant, rms_norm, rms_norm_reference
from infer_kernels.rope import apply_rope, apply_rope_reference
from infer_kernels.rope_batched import apply_rope_batched, apply_rope_batched_reference
from infer_kernels.sampling import (
    TopLogprobs,
    apply_penalties,
    apply_penalties_reference,
    count_tokens,
    count_tokens_reference,
    sample,
    sample_reference,
    sample_scratch,
    topk_logprobs,
    topk_logprobs_reference,
)
from infer_kernels.store_kv import KVSlots, store_kv, store_kv_reference

__all__ = [
    "AttentionBuffers",
    "AttentionPlan",
    "BagFiller",
    "BagLayout",
    "BagShape",
    "Bags",
    "DecodePlan",
    "KVSlots",
    "NormVariant",
    "QKNorm",
    "Rotary",
    "TopLogprobs",
    "add_rms_norm",
    "add_rms_norm_reference",
    "advance_decode",
    "advance_decode_reference",
    "apply_penalties",
    "apply_penalties_reference",
    "apply_rope",
    "apply_rope_batched",
    "apply_rope_batched_reference",
    "apply_rope_reference",
    "causal_attention",
    "copy_blocks",
    "copy_blocks_reference",
    "count_tokens",
    "count_tokens_reference",
    "gather_rows",
    "gather_rows_reference",
    "gelu_tanh_and_mul",
    "gelu_tanh_and_mul_reference",
    "kv_cache_dtype",
    "linear",
    "linear_invariant",
    "linear_invariant_reference",
    "norm_add_norm",
    "norm_add_norm_reference",
    "paged_attention",
    "paged_attention_reference",
    "plan_attention",
    "prepack",
    "qk_norm_rope_store",
    "qk_norm_rope_store_reference",
    "rms_norm",
    "rms_norm_reference",
    "sample",
    "sample_reference",
    "sample_scratch",
    "silu_and_mul",
    "silu_and_mul_reference",
    "store_kv",
    "store_kv_reference",
    "topk_logprobs",
    "topk_logprobs_reference",
    "wants_transposed_keys",
]
