"""Model shapes at real sizes, as fields of `config.json`. Weights come with `load_format="dummy"` or `checkpoints`."""

import json
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

Shape = dict[str, Any]

NO_DRAFTS: Mapping[str, Any] = MappingProxyType({"speculative_config": "none"})
"""Fields of `EngineConfig` for random weights: their answers repeat themselves, which drafts would make faster."""
NO_DRAFTS_FLAGS = ("--speculative-config", "none")
"""The same for `infer-server`, and for what is compared with servers that draft nothing."""


def _sizes(*, layers: int, hidden: int, intermediate: int, heads: int, kv_heads: int, **more: Any) -> Shape:
    """Return the sizes that every family has, in bf16, and `more`."""
    return {
        "num_hidden_layers": layers,
        "hidden_size": hidden,
        "intermediate_size": intermediate,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "torch_dtype": "bfloat16",
        "tie_word_embeddings": True,
        **more,
    }


def _vocabulary(size: int, *, bos: int = 1, eos: int | list[int] = 2) -> Shape:
    return {"vocab_size": size, "bos_token_id": bos, "eos_token_id": eos}


def _positions(most: int, theta: float, **more: Any) -> Shape:
    return {"max_position_embeddings": most, "rope_theta": theta, **more}


_LLAMA: Shape = {"model_type": "llama", "rms_norm_eps": 1e-5, "hidden_act": "silu"}
_QWEN3: Shape = _LLAMA | {"model_type": "qwen3", "rms_norm_eps": 1e-6, "head_dim": 128}
_VOCABULARY_8K = _vocabulary(8192) | {"max_position_embeddings": 4096}
"""A vocabulary that a tokenizer can be trained for on the spot."""
SMOLLM_135M = (
    _LLAMA
    | _sizes(layers=30, hidden=576, intermediate=1536, heads=9, kv_heads=3)
    | _vocabulary(49152)
    | _positions(2048, 10000.0)
)
QWEN3_06B = (
    _QWEN3
    | _sizes(layers=28, hidden=1024, intermediate=3072, heads=16, kv_heads=8)
    | _vocabulary(151936, bos=151643, eos=151645)
    | _positions(40960, 1e6)
)
_QWEN35_LINEAR: Shape = {
    "model_type": "qwen3_5_text",
    "rms_norm_eps": 1e-6,
    "head_dim": 256,
    "full_attention_interval": 4,
    "linear_key_head_dim": 128,
    "linear_value_head_dim": 128,
    "linear_conv_kernel_dim": 4,
    **_positions(262144, 1e7, partial_rotary_factor=0.25),
}
_LLAMA_3_SCALING = {
    "rope_type": "llama3",
    "factor": 32.0,
    "original_max_position_embeddings": 8192,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
}
_YARN = {
    "rope_type": "yarn",
    "factor": 32.0,
    "original_max_position_embeddings": 4096,
    "beta_fast": 32.0,
    "beta_slow": 1.0,
    "truncate": False,
}

SHAPES: dict[str, Shape] = {
    "smollm-135m": SMOLLM_135M,
    # No real model: small enough that 100,000 prompt tokens take a minute on one core.
    "llama-30m": SMOLLM_135M | _VOCABULARY_8K | _sizes(layers=8, hidden=512, intermediate=1536, heads=8, kv_heads=4),
    "llama-135m-8k": SMOLLM_135M | _VOCABULARY_8K | {"tie_word_embeddings": False},
    "qwen3-0.6b-8k": QWEN3_06B | _VOCABULARY_8K,
    "qwen3-0.6b": QWEN3_06B,
    "qwen3.5-0.8b-8k": _QWEN35_LINEAR
    | _vocabulary(8192)
    | _sizes(layers=24, hidden=1024, intermediate=3584, heads=8, kv_heads=2)
    | {"linear_num_key_heads": 16, "linear_num_value_heads": 16},
    # No real model: small enough that conversations of 15,000 tokens take minutes on two cores.
    "qwen3.5-80m-8k": _QWEN35_LINEAR
    | _vocabulary(8192)
    | _sizes(layers=12, hidden=512, intermediate=1792, heads=4, kv_heads=1)
    | {"linear_num_key_heads": 8, "linear_num_value_heads": 8},
    "llama-3.2-3b": _LLAMA
    | _sizes(layers=28, hidden=3072, intermediate=8192, heads=24, kv_heads=8, head_dim=128)
    | _vocabulary(128256, bos=128000, eos=128001)
    | _positions(131072, 500000.0, rope_scaling=_LLAMA_3_SCALING),
    # No real model: 3 billion weights of which 0.4 billion compute a token.
    "moe-3b": QWEN3_06B
    | _VOCABULARY_8K
    | {"model_type": "qwen3_moe", "num_hidden_layers": 30, "moe_intermediate_size": 512}
    | {"num_experts": 64, "num_experts_per_tok": 4, "norm_topk_prob": True},
    "qwen3-4b": QWEN3_06B | _sizes(layers=36, hidden=2560, intermediate=9728, heads=32, kv_heads=8),
    "gpt-oss-20b": {"model_type": "gpt_oss", "rms_norm_eps": 1e-5, "num_local_experts": 32, "num_experts_per_tok": 4}
    | _sizes(layers=24, hidden=2880, intermediate=2880, heads=64, kv_heads=8, head_dim=64, tie_word_embeddings=False)
    | _vocabulary(201088, bos=199998, eos=200002)
    | _positions(131072, 150000.0, sliding_window=128, rope_scaling=_YARN),
    "gemma-3-1b": {"model_type": "gemma3_text", "rms_norm_eps": 1e-6, "hidden_activation": "gelu_pytorch_tanh"}
    | _sizes(layers=26, hidden=1152, intermediate=6912, heads=4, kv_heads=1, head_dim=256, query_pre_attn_scalar=256)
    | _vocabulary(262144, bos=2, eos=[1, 106])
    | _positions(32768, 1e6, rope_local_base_freq=10000.0, sliding_window=512, sliding_window_pattern=6),
}


def write_config(shape: str | Shape, folder: Path) -> Path:
    """Write the `config.json` of `shape`, a name or the fields themselves, and return `folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    fields = SHAPES[shape] if isinstance(shape, str) else shape
    (folder / "config.json").write_text(json.dumps(fields, indent=2), encoding="utf-8")
    return folder
