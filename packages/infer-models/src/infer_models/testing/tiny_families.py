"""`TINY_FAMILIES`: how `transformers` makes a tiny model of each family.

What a family has beside Llama is there and small: windows of 8 tokens, positions of a first training that end at 32,
layers of each kind.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

LLAMA3_SCALING: dict[str, Any] = {
    "rope_type": "llama3",
    "rope_theta": 500000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}
YARN_SCALING: dict[str, Any] = {
    "rope_type": "yarn",
    "rope_theta": 10000.0,
    "factor": 16.0,
    "original_max_position_embeddings": 32,
}
LONGROPE_SCALING: dict[str, Any] = {
    "rope_type": "longrope",
    "rope_theta": 10000.0,
    "partial_rotary_factor": 0.75,
    "short_factor": [1.0 + 0.05 * i for i in range(12)],
    "long_factor": [1.0 + 0.5 * i for i in range(12)],
    "original_max_position_embeddings": 32,
}
SHAPE: dict[str, Any] = {
    "vocab_size": 320,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "max_position_embeddings": 512,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
"""Common fields of the tiny models."""
VISION: dict[str, Any] = {
    "hidden_size": 32,
    "intermediate_size": 32,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "image_size": 28,
    "patch_size": 14,
}
"""The vision model inside a tiny multimodal one."""
_FULL, _SLIDING, _LINEAR = "full_attention", "sliding_attention", "linear_attention"
_GEMMA3: dict[str, Any] = {
    "num_hidden_layers": 4,
    "layer_types": [_SLIDING, _SLIDING, _FULL, _SLIDING],
    "sliding_window": 8,
    "query_pre_attn_scalar": 24,
    "rope_parameters": {
        _FULL: {"rope_type": "linear", "factor": 8.0, "rope_theta": 1000000.0},
        _SLIDING: {"rope_type": "default", "rope_theta": 10000.0},
    },
}


_GEMMA4: dict[str, Any] = {
    "num_hidden_layers": 4,
    "layer_types": [_SLIDING, _FULL, _SLIDING, _FULL],
    "sliding_window": 8,
    "head_dim": 16,
    "global_head_dim": 32,
    "num_kv_shared_layers": 2,
    "use_double_wide_mlp": True,
    "hidden_size_per_layer_input": 16,
    "vocab_size_per_layer_input": 320,
}
_GEMMA4_EXPERTS: dict[str, Any] = {"enable_moe_block": True, "num_experts": 6, "top_k_experts": 2}
_GEMMA4_EXPERTS |= {"moe_intermediate_size": 48, "hidden_size_per_layer_input": 0, "num_kv_shared_layers": 0}
_DELTA_NET: dict[str, Any] = {
    "num_hidden_layers": 4,
    "layer_types": [_LINEAR, _LINEAR, _FULL, _LINEAR],
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 16,
    "linear_value_head_dim": 16,
}
_EXPERTS: dict[str, Any] = {
    "num_experts": 6,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 48,
    "shared_expert_intermediate_size": 32,
}
_GRANITE: dict[str, Any] = {
    "embedding_multiplier": 12.0,
    "attention_multiplier": 0.15,
    "residual_multiplier": 0.22,
    "logits_scaling": 8.0,
}
_MAMBA2: dict[str, Any] = {
    "num_hidden_layers": 4,
    "layer_types": [_LINEAR, _LINEAR, _FULL, _LINEAR],
    "mamba_n_heads": 8,
    "mamba_n_groups": 2,
    "mamba_d_state": 16,
    "mamba_chunk_size": 32,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class TinyFamily:
    """A recipe for a tiny model of a family with `transformers`.

    Attributes:
        config: the class of its configuration.
        model: the class of the model.
        fields: fields of `config.json`, beside those of `SHAPE` or instead of them.
        wrapper: the classes of the configurations of the multimodal model around it and of its vision model.
        has_states: some layers have a state in place of keys and values; such models are not divided among ranks.
    """

    config: str
    model: str
    fields: dict[str, Any] = field(default_factory=dict)
    wrapper: tuple[str, str] | None = None
    has_states: bool = False


TINY_FAMILIES: Mapping[str, TinyFamily] = MappingProxyType(
    {
        "llama": TinyFamily(config="LlamaConfig", model="LlamaForCausalLM"),
        "mistral": TinyFamily(config="MistralConfig", model="MistralForCausalLM", fields={"sliding_window": 8}),
        "ministral": TinyFamily(
            config="MinistralConfig",
            model="MinistralForCausalLM",
            fields={"sliding_window": 8, "layer_types": [_FULL, _SLIDING, _SLIDING]},
        ),
        "ministral3": TinyFamily(
            config="Ministral3Config",
            model="Ministral3ForCausalLM",
            fields={"rope_parameters": YARN_SCALING | {"llama_4_scaling_beta": 0.1}},
        ),
        "qwen2": TinyFamily(config="Qwen2Config", model="Qwen2ForCausalLM"),
        "qwen3": TinyFamily(config="Qwen3Config", model="Qwen3ForCausalLM"),
        "smollm3": TinyFamily(config="SmolLM3Config", model="SmolLM3ForCausalLM", fields={"no_rope_layers": [1, 0, 1]}),
        "granite": TinyFamily(
            config="GraniteConfig",
            model="GraniteForCausalLM",
            fields=_GRANITE,
        ),
        "phi3": TinyFamily(
            config="Phi3Config",
            model="Phi3ForCausalLM",
            fields={"hidden_size": 128, "rope_parameters": LONGROPE_SCALING, "sliding_window": 1000},
        ),
        "olmo2": TinyFamily(config="Olmo2Config", model="Olmo2ForCausalLM"),
        "olmo3": TinyFamily(
            config="Olmo3Config",
            model="Olmo3ForCausalLM",
            fields={
                "sliding_window": 8,
                "layer_types": [_SLIDING, _FULL, _SLIDING],
                "rope_parameters": {_FULL: YARN_SCALING, _SLIDING: {"rope_type": "default", "rope_theta": 10000.0}},
            },
        ),
        "qwen3_moe": TinyFamily(
            config="Qwen3MoeConfig",
            model="Qwen3MoeForCausalLM",
            fields={"num_experts": 6, "num_experts_per_tok": 2, "moe_intermediate_size": 48, "norm_topk_prob": True},
        ),
        "mixtral": TinyFamily(
            config="MixtralConfig",
            model="MixtralForCausalLM",
            fields={"num_local_experts": 6, "num_experts_per_tok": 2, "intermediate_size": 48},
        ),
        "gpt_oss": TinyFamily(
            config="GptOssConfig",
            model="GptOssForCausalLM",
            fields={
                "num_local_experts": 6,
                "num_experts_per_tok": 3,
                "sliding_window": 8,
                "rope_parameters": YARN_SCALING | {"truncate": False},
            },
        ),
        "lfm2": TinyFamily(
            config="Lfm2Config",
            model="Lfm2ForCausalLM",
            fields={"layer_types": ["conv", _FULL, "conv"], "block_multiple_of": 16},
            has_states=True,
        ),
        "qwen3_5": TinyFamily(
            config="Qwen3_5TextConfig", model="Qwen3_5ForCausalLM", fields=_DELTA_NET, has_states=True
        ),
        "qwen3_5_moe": TinyFamily(
            config="Qwen3_5MoeTextConfig",
            model="Qwen3_5MoeForCausalLM",
            fields=_DELTA_NET | _EXPERTS,
            has_states=True,
        ),
        "qwen3_next": TinyFamily(
            config="Qwen3NextConfig", model="Qwen3NextForCausalLM", fields=_DELTA_NET | _EXPERTS, has_states=True
        ),
        "granitemoehybrid": TinyFamily(
            config="GraniteMoeHybridConfig",
            model="GraniteMoeHybridForCausalLM",
            fields=_GRANITE
            | _MAMBA2
            | {"num_local_experts": 6, "num_experts_per_tok": 2, "shared_intermediate_size": 80},
            has_states=True,
        ),
        "gemma3": TinyFamily(config="Gemma3TextConfig", model="Gemma3ForCausalLM", fields=_GEMMA3),
        "gemma3_wrapped": TinyFamily(
            config="Gemma3TextConfig",
            model="Gemma3ForConditionalGeneration",
            fields=_GEMMA3,
            wrapper=("Gemma3Config", "SiglipVisionConfig"),
        ),
        "gemma4": TinyFamily(config="Gemma4TextConfig", model="Gemma4ForCausalLM", fields=_GEMMA4),
        "gemma4_moe": TinyFamily(
            config="Gemma4TextConfig", model="Gemma4ForCausalLM", fields=_GEMMA4 | _GEMMA4_EXPERTS
        ),
        "gemma4_wrapped": TinyFamily(
            config="Gemma4TextConfig",
            model="Gemma4ForConditionalGeneration",
            fields=_GEMMA4,
            wrapper=("Gemma4Config", "Gemma4VisionConfig"),
        ),
        "mistral3": TinyFamily(
            config="MistralConfig",
            model="Mistral3ForConditionalGeneration",
            fields={"sliding_window": None},
            wrapper=("Mistral3Config", "PixtralVisionConfig"),
        ),
        "llava": TinyFamily(
            config="LlamaConfig",
            model="LlavaForConditionalGeneration",
            wrapper=("LlavaConfig", "CLIPVisionConfig"),
        ),
        "qwen3_5_wrapped": TinyFamily(
            config="Qwen3_5TextConfig",
            model="Qwen3_5ForConditionalGeneration",
            fields=_DELTA_NET,
            wrapper=("Qwen3_5Config", "Qwen3_5VisionConfig"),
            has_states=True,
        ),
        "qwen3_5_moe_wrapped": TinyFamily(
            config="Qwen3_5MoeTextConfig",
            model="Qwen3_5MoeForConditionalGeneration",
            fields=_DELTA_NET | _EXPERTS,
            wrapper=("Qwen3_5MoeConfig", "Qwen3_5MoeVisionConfig"),
            has_states=True,
        ),
    }
)
"""The tiny models, by `model_type` or, for those in wrappers, by a name of their own."""
