"""Every op in plain fp32 PyTorch written for clarity. Knows formulas; knows no speed.

A reference changes none of its arguments: where an op writes into a tensor, its reference returns a changed copy.
"""

from infer_kernels.attention.reference import paged_attention_reference
from infer_kernels.embedding import embedding_quantized_reference, embedding_reference
from infer_kernels.gated_activations import (
    gelu_tanh_and_mul_reference,
    gelu_tanh_gate_reference,
    silu_and_mul_reference,
)
from infer_kernels.linear.fused_products import (
    gated_linear_reference,
    linear_add_norm_reference,
)
from infer_kernels.linear.linear_argmax import linear_argmax_reference
from infer_kernels.linear.linear_invariant import linear_invariant_reference
from infer_kernels.linear.quantized.linear_fp8 import linear_fp8_reference, quantize_rows_fp8_reference
from infer_kernels.linear.quantized.linear_quantized import linear_quantized_reference
from infer_kernels.linear.reference import linear_reference
from infer_kernels.moe.fused_moe import fused_moe_quantized_reference, fused_moe_reference
from infer_kernels.moe.fused_moe_add_norm import fused_moe_add_norm_reference
from infer_kernels.moe.fused_router import fused_router_reference
from infer_kernels.moe.router import moe_router_reference
from infer_kernels.norm.add_rms_norm import add_rms_norm_reference
from infer_kernels.norm.gated_rms_norm import gated_rms_norm_reference
from infer_kernels.norm.norm_add import norm_add_reference
from infer_kernels.norm.norm_add_norm import norm_add_norm_reference
from infer_kernels.norm.rms_norm import rms_norm_reference
from infer_kernels.norm.rms_norm_of_gated import rms_norm_of_gated_reference
from infer_kernels.norm.sharded_rms_norm import sharded_rms_norm_reference, sum_of_squares_reference
from infer_kernels.qkv.q_norm_rope import q_norm_rope_reference
from infer_kernels.qkv.qk_norm_rope_store import qk_norm_rope_store_reference
from infer_kernels.qkv.rope import apply_rope_reference
from infer_kernels.resolve_token_ids import resolve_token_ids_reference
from infer_kernels.sampling.bitmask import apply_bitmask_reference
from infer_kernels.sampling.largest import greedy_reference
from infer_kernels.sampling.logprobs import topk_logprobs_reference
from infer_kernels.sampling.penalties import apply_penalties_reference, count_tokens_reference
from infer_kernels.sampling.sample import kept_tokens_reference, sample_reference
from infer_kernels.sampling.uniform import uniform_reference
from infer_kernels.sigmoid_gate import sigmoid_gate_reference
from infer_kernels.states.causal_convolution import causal_convolution_reference, gated_convolution_reference
from infer_kernels.states.gated_delta_rule import gated_delta_rule_reference
from infer_kernels.states.mamba2_scan import mamba2_scan_reference

__all__ = [
    "add_rms_norm_reference",
    "apply_bitmask_reference",
    "apply_penalties_reference",
    "apply_rope_reference",
    "causal_convolution_reference",
    "count_tokens_reference",
    "embedding_quantized_reference",
    "embedding_reference",
    "fused_moe_add_norm_reference",
    "fused_moe_quantized_reference",
    "fused_moe_reference",
    "fused_router_reference",
    "gated_convolution_reference",
    "gated_delta_rule_reference",
    "gated_linear_reference",
    "gated_rms_norm_reference",
    "gelu_tanh_and_mul_reference",
    "gelu_tanh_gate_reference",
    "greedy_reference",
    "kept_tokens_reference",
    "linear_add_norm_reference",
    "linear_argmax_reference",
    "linear_fp8_reference",
    "linear_invariant_reference",
    "linear_quantized_reference",
    "linear_reference",
    "mamba2_scan_reference",
    "moe_router_reference",
    "norm_add_norm_reference",
    "norm_add_reference",
    "paged_attention_reference",
    "q_norm_rope_reference",
    "qk_norm_rope_store_reference",
    "quantize_rows_fp8_reference",
    "resolve_token_ids_reference",
    "rms_norm_of_gated_reference",
    "rms_norm_reference",
    "sample_reference",
    "sharded_rms_norm_reference",
    "sigmoid_gate_reference",
    "silu_and_mul_reference",
    "sum_of_squares_reference",
    "topk_logprobs_reference",
    "uniform_reference",
]
