"""Which ops each family of models computes with, at the sizes of one model."""

from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any

import torch

from infer_kernels import QuantizedWeight
from infer_kernels.checks import ModelOps, MoeOps, QuantizedOps
from infer_models import CausalLM, ModelConfig

FAMILY_OPS: Mapping[str, Mapping[str, Any]] = MappingProxyType(
    {
        "llama": {},
        "mistral": {},
        "ministral": {},
        "ministral3": {},
        "qwen2": {"qkv_bias": True},
        "qwen3": {"qk_norm": "llama"},
        "qwen3_moe": {"qk_norm": "llama"},
        "smollm3": {},
        "granite": {},
        "phi3": {},
        "olmo2": {"has_post_norms": True, "norms_all_heads": True},
        "olmo3": {"has_post_norms": True, "norms_all_heads": True},
        "gemma3_text": {
            "norm": "gemma",
            "qk_norm": "gemma",
            "has_sandwich_norms": True,
            "activation": "gelu_tanh_and_mul",
        },
        "gpt_oss": {"has_sinks": True, "qkv_bias": True, "output_bias": True},
        "nanogpt": {"norm": None, "activation": None},
    }
)
"""By `model_type`, the fields of `ModelOps` in which a family differs from Llama whatever its sizes are.

A registered family is taken for one that does not.
"""
MOE_OPS: Mapping[str, Mapping[str, Any]] = MappingProxyType(
    {
        "qwen3_moe": {"scoring": "softmax", "activation": "silu_and_mul"},
        "gpt_oss": {"scoring": "softmax_of_top_k", "activation": "clamped_swiglu", "has_biases": True},
    }
)
"""By `model_type`, the fields of `MoeOps` that a family with experts has whatever its sizes are.

A registered family is taken for one like Qwen 3.
"""


def quantized_ops_of(model: CausalLM) -> tuple[QuantizedOps, ...]:
    """Return the formats of a model's quantized weights."""
    found = [
        QuantizedOps(
            encoding=weight.encoding,
            group_size=None if weight.scales.shape[-1] == 1 else weight.group_size,
            has_zeros=weight.zeros is not None,
        )
        for weight, _ in model.stored_by_parameter()
        if isinstance(weight, QuantizedWeight)
    ]
    return tuple(dict.fromkeys(found))


def ops_of(
    config: ModelConfig,
    *,
    dtype: torch.dtype,
    block_size: int,
    quantized: tuple[QuantizedOps, ...] = (),
    kv_dtype: torch.dtype | None = None,
) -> ModelOps:
    """Return the ops of a model of `config`, computed in `dtype` over blocks of `block_size` tokens.

    `quantized` are the formats of its weights, `kv_dtype` is that of a cache of eight bits; None: `dtype`.
    """
    rotary_dims = {rope.rotary_dim for rope in config.ropes if rope is not None}
    biases: dict[str, Any] = {
        "qkv_bias": config.attention_bias,
        "output_bias": config.attention_bias,
        "mlp_bias": config.mlp_bias,
    }
    ops = ModelOps(
        dtype=dtype,
        vocab_size=config.vocab_size,
        hidden_size=config.hidden_size,
        intermediate_size=config.intermediate_size,
        q_heads=config.q_heads,
        kv_heads=config.kv_heads,
        head_dim=config.head_dim,
        block_size=block_size,
        scale=config.attention_scale,
        windows=tuple(dict.fromkeys(config.windows)),
        soft_cap=config.attention_soft_cap,
        has_rotary=bool(rotary_dims),
        rotary_dim=next(iter(rotary_dims), None),
        embedding_scale=config.embedding_scale,
        quantized=quantized,
        kv_dtype=kv_dtype,
        **{**biases, **FAMILY_OPS.get(config.model_type, {})},
    )
    if config.moe is None:
        return ops
    moe = MoeOps(
        experts=config.moe.num_experts,
        experts_per_token=config.moe.experts_per_token,
        intermediate_size=config.moe.intermediate_size,
        normalize=config.moe.normalizes_weights,
        **MOE_OPS.get(config.model_type, MOE_OPS["qwen3_moe"]),
    )
    return replace(ops, moe=moe, activation=None if all(config.moe.is_sparse) else ops.activation)
