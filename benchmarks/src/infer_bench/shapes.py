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

_LLAMA: Shape = {
    "model_type": "llama",
    "rms_norm_eps": 1e-5,
    "hidden_act": "silu",
    "tie_word_embeddings": True,
    "torch_dtype": "bfloat16",
    "bos_token_id": 1,
    "eos_token_id": 2,
}
_QWEN3: Shape = _LLAMA | {"model_type": "qwen3", "rms_norm_eps": 1e-6, "head_dim": 128, "rope_theta": 1e6}

SMOLLM_135M: Shape = _LLAMA | {
    "vocab_size": 49152,
    "hidden_size": 576,
    "intermediate_size": 1536,
    "num_hidden_layers": 30,
    "num_attention_heads": 9,
    "num_key_value_heads": 3,
    "max_position_embeddings": 2048,
    "rope_theta": 10000.0,
}
_VOCABULARY_8K: Shape = {"vocab_size": 8192, "max_position_embeddings": 4096}
"""A vocabulary that a tokenizer can be trained for on the spot."""

QWEN3_06B: Shape = _QWEN3 | {
    "vocab_size": 151936,
    "hidden_size": 1024,
    "intermediate_size": 3072,
    "num_hidden_layers": 28,
    "num_attention_heads": 16,
    "num_key_value_heads": 8,
    "max_position_embeddings": 40960,
    "bos_token_id": 151643,
    "eos_token_id": 151645,
}

QWEN35_08B: Shape = {
    "model_type": "qwen3_5_text",
    "vocab_size": 248320,
    "hidden_size": 1024,
    "intermediate_size": 3584,
    "num_hidden_layers": 24,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "head_dim": 256,
    "linear_num_key_heads": 16,
    "linear_num_value_heads": 16,
    "linear_key_head_dim": 128,
    "linear_value_head_dim": 128,
    "linear_conv_kernel_dim": 4,
    "full_attention_interval": 4,
    "max_position_embeddings": 262144,
    "rms_norm_eps": 1e-6,
    "rope_theta": 1e7,
    "partial_rotary_factor": 0.25,
    "tie_word_embeddings": True,
    "torch_dtype": "bfloat16",
    "bos_token_id": 1,
    "eos_token_id": 2,
}

SHAPES: dict[str, Shape] = {
    "smollm-135m": SMOLLM_135M,
    # No real model: small enough that 100,000 prompt tokens take a minute on one core.
    "llama-30m": SMOLLM_135M
    | _VOCABULARY_8K
    | {"hidden_size": 512, "num_hidden_layers": 8, "num_attention_heads": 8, "num_key_value_heads": 4},
    "llama-135m-8k": SMOLLM_135M | _VOCABULARY_8K | {"tie_word_embeddings": False},
    "qwen3-0.6b-8k": QWEN3_06B | _VOCABULARY_8K | {"bos_token_id": 1, "eos_token_id": 2},
    "qwen3-0.6b": QWEN3_06B,
    "qwen3.5-0.8b-8k": QWEN35_08B | {"vocab_size": 8192},
    # No real model: small enough that conversations of 15,000 tokens take minutes on two cores.
    "qwen3.5-80m-8k": QWEN35_08B
    | {
        "vocab_size": 8192,
        "hidden_size": 512,
        "intermediate_size": 1792,
        "num_hidden_layers": 12,
        "num_attention_heads": 4,
        "num_key_value_heads": 1,
        "linear_num_key_heads": 8,
        "linear_num_value_heads": 8,
    },
    "llama-3.2-3b": _LLAMA
    | {
        "vocab_size": 128256,
        "hidden_size": 3072,
        "intermediate_size": 8192,
        "num_hidden_layers": 28,
        "num_attention_heads": 24,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "max_position_embeddings": 131072,
        "rope_theta": 500000.0,
        "rope_scaling": {
            "rope_type": "llama3",
            "factor": 32.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 8192,
        },
        "bos_token_id": 128000,
        "eos_token_id": 128001,
    },
    # No real model: 3 billion weights of which 0.4 billion compute a token.
    "moe-3b": QWEN3_06B
    | _VOCABULARY_8K
    | {
        "model_type": "qwen3_moe",
        "num_hidden_layers": 30,
        "num_experts": 64,
        "num_experts_per_tok": 4,
        "moe_intermediate_size": 512,
        "norm_topk_prob": True,
        "bos_token_id": 1,
        "eos_token_id": 2,
    },
    "qwen3-4b": QWEN3_06B
    | {"hidden_size": 2560, "intermediate_size": 9728, "num_hidden_layers": 36, "num_attention_heads": 32},
    "gpt-oss-20b": {
        "model_type": "gpt_oss",
        "vocab_size": 201088,
        "hidden_size": 2880,
        "intermediate_size": 2880,
        "num_hidden_layers": 24,
        "num_attention_heads": 64,
        "num_key_value_heads": 8,
        "head_dim": 64,
        "max_position_embeddings": 131072,
        "rms_norm_eps": 1e-5,
        "num_local_experts": 32,
        "num_experts_per_tok": 4,
        "sliding_window": 128,
        "rope_theta": 150000.0,
        "rope_scaling": {
            "rope_type": "yarn",
            "factor": 32.0,
            "beta_fast": 32.0,
            "beta_slow": 1.0,
            "truncate": False,
            "original_max_position_embeddings": 4096,
        },
        "torch_dtype": "bfloat16",
        "bos_token_id": 199998,
        "eos_token_id": 200002,
    },
    "gemma-3-1b": {
        "model_type": "gemma3_text",
        "vocab_size": 262144,
        "hidden_size": 1152,
        "intermediate_size": 6912,
        "num_hidden_layers": 26,
        "num_attention_heads": 4,
        "num_key_value_heads": 1,
        "head_dim": 256,
        "max_position_embeddings": 32768,
        "rms_norm_eps": 1e-6,
        "rope_theta": 1e6,
        "rope_local_base_freq": 10000.0,
        "sliding_window": 512,
        "sliding_window_pattern": 6,
        "query_pre_attn_scalar": 256,
        "hidden_activation": "gelu_pytorch_tanh",
        "tie_word_embeddings": True,
        "torch_dtype": "bfloat16",
        "bos_token_id": 2,
        "eos_token_id": [1, 106],
    },
}


def write_config(shape: str | Shape, folder: Path) -> Path:
    """Write the `config.json` of `shape`, a name or the fields themselves, and return `folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    fields = SHAPES[shape] if isinstance(shape, str) else shape
    (folder / "config.json").write_text(json.dumps(fields, indent=2), encoding="utf-8")
    return folder
