"""LLM inference kernels in Triton and C++, each beside its PyTorch reference. Knows flat batches; knows no model.

Every op takes flat batches (`tokens` rows, no padding), computes in fp32 and rounds where its module says. On CUDA
tensors it runs its Triton kernel, on a CPU with a compiler its C++ kernel if it has one, and elsewhere (and wherever a
gradient is wanted) plain PyTorch.

`infer_kernels.reference` has the references, `infer_kernels.cpu` captured steps, and `infer_kernels.checks` checks of
a model's ops on the user's machine.
"""

from infer_kernels.attention import (
    AttentionBuffers,
    AttentionHeads,
    AttentionPlan,
    DeviceMetadata,
    causal_attention,
    paged_attention,
    plan_attention,
    plan_attention_on_device,
)
from infer_kernels.embedding import embedding, embedding_quantized
from infer_kernels.gated_activations import gelu_tanh_and_mul, gelu_tanh_gate, silu_and_mul
from infer_kernels.linear import (
    FusedProducts,
    PendingNorm,
    SeparateProducts,
    apply_pending_norm,
    has_quantized_kernel,
    linear,
    linear_argmax,
    linear_invariant,
    prepack,
)
from infer_kernels.moe import (
    ExpertActivation,
    ExpertChoice,
    FusedRouter,
    Routing,
    SeparateRouter,
    fused_moe,
    fused_moe_add_norm,
    moe_router,
    prepack_experts,
)
from infer_kernels.norm import (
    NormVariant,
    add_rms_norm,
    gated_rms_norm,
    norm_add,
    norm_add_norm,
    rms_norm,
    rms_norm_of_gated,
    sharded_rms_norm,
    sum_of_squares,
)
from infer_kernels.qkv import (
    KVScales,
    KVSlots,
    QKNorm,
    Rotary,
    apply_rope,
    q_norm_rope,
    qk_norm_rope_store,
    row_width,
)
from infer_kernels.quantization import QuantizedWeight, quantize_fp8, quantize_int4, quantize_int8
from infer_kernels.resolve_token_ids import resolve_token_ids
from infer_kernels.sampling import (
    Largest,
    TopLogprobs,
    apply_bitmask,
    apply_penalties,
    count_tokens,
    greedy,
    sample,
    topk_logprobs,
)
from infer_kernels.sigmoid_gate import sigmoid_gate
from infer_kernels.states import (
    ConvolutionActivation,
    StateRows,
    causal_convolution,
    gated_convolution,
    gated_delta_rule,
    mamba2_scan,
)

__all__ = [
    "AttentionBuffers",
    "AttentionHeads",
    "AttentionPlan",
    "ConvolutionActivation",
    "DeviceMetadata",
    "ExpertActivation",
    "ExpertChoice",
    "FusedProducts",
    "FusedRouter",
    "KVScales",
    "KVSlots",
    "Largest",
    "NormVariant",
    "PendingNorm",
    "QKNorm",
    "QuantizedWeight",
    "Rotary",
    "Routing",
    "SeparateProducts",
    "SeparateRouter",
    "StateRows",
    "TopLogprobs",
    "add_rms_norm",
    "apply_bitmask",
    "apply_penalties",
    "apply_pending_norm",
    "apply_rope",
    "causal_attention",
    "causal_convolution",
    "count_tokens",
    "embedding",
    "embedding_quantized",
    "fused_moe",
    "fused_moe_add_norm",
    "gated_convolution",
    "gated_delta_rule",
    "gated_rms_norm",
    "gelu_tanh_and_mul",
    "gelu_tanh_gate",
    "greedy",
    "has_quantized_kernel",
    "linear",
    "linear_argmax",
    "linear_invariant",
    "mamba2_scan",
    "moe_router",
    "norm_add",
    "norm_add_norm",
    "paged_attention",
    "plan_attention",
    "plan_attention_on_device",
    "prepack",
    "prepack_experts",
    "q_norm_rope",
    "qk_norm_rope_store",
    "quantize_fp8",
    "quantize_int4",
    "quantize_int8",
    "resolve_token_ids",
    "rms_norm",
    "rms_norm_of_gated",
    "row_width",
    "sample",
    "sharded_rms_norm",
    "sigmoid_gate",
    "silu_and_mul",
    "sum_of_squares",
    "topk_logprobs",
]
