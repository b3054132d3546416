"""Which ops each family of models computes with, at the sizes of one model."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import torch

from infer_kernels.selftest import ModelOps
from infer_models import ModelConfig

FAMILY_OPS: Mapping[str, Mapping[str, Any]] = MappingProxyType(
    {
        "llama": MappingProxyType({}),
        "qwen3": MappingProxyType({"qk_norm": "llama"}),
        "gemma3_text": MappingProxyType(
            {"norm": "gemma", "qk_norm": "gemma", "has_sandwich_norms": True, "activation": "gelu_tanh_and_mul"}
        ),
        "nanogpt": MappingProxyType({"norm": None, "has_rotary": False, "activation": None}),
    }
)
"""By `model_type`, the fields of `ModelOps` in which the family differs from Llama."""


def ops_of(config: ModelConfig, *, dtype: torch.dtype, block_size: int) -> ModelOps:
    """Return the ops of a model of `config`, computed in `dtype` over blocks of `block_size` tokens."""
    return ModelOps(
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
        embedding_scale=config.hidden_size**0.5 if config.model_type == "gemma3_text" else 1.0,
        **FAMILY_OPS[config.model_type],
    )
