"""Tiny models of Gemma 4."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from infer_models.families.gemma3.tiny import CHAT
from infer_models.families.tiny_family import FULL, SLIDING, TinyFamily, TinyGguf, renamed, restored

_GEMMA4: dict[str, Any] = {
    "num_hidden_layers": 4,
    "layer_types": [SLIDING, FULL, SLIDING, FULL],
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
_NAMES = {
    "model.embed_tokens_per_layer.weight": "per_layer_token_embd.weight",
    "model.per_layer_model_projection.weight": "per_layer_model_proj.weight",
    "model.per_layer_projection_norm.weight": "per_layer_proj_norm.weight",
    "layer_scalar": "layer_output_scale.weight",
    "per_layer_input_gate.weight": "inp_gate.weight",
    "per_layer_projection.weight": "proj.weight",
    "post_per_layer_input_norm.weight": "post_norm.weight",
    "post_feedforward_layernorm_1.weight": "post_ffw_norm_1.weight",
    "pre_feedforward_layernorm_2.weight": "pre_ffw_norm_2.weight",
    "post_feedforward_layernorm_2.weight": "post_ffw_norm_2.weight",
    "router.proj.weight": "ffn_gate_inp.weight",
    "router.scale": "ffn_gate_inp.scale",
    "router.per_expert_scale": "ffn_down_exps.scale",
    "experts.gate_up_proj": "ffn_gate_up_exps.weight",
    "experts.down_proj": "ffn_down_exps.weight",
}


def _full_head_dim(config: Mapping[str, Any]) -> int:
    layer = str(config["layer_types"].index("full_attention"))
    return int(config["per_layer_config"][layer]["head_dim"])


def _values(config: Mapping[str, Any]) -> dict[str, Any]:
    kinds, heads, width = config["layer_types"], config["num_key_value_heads"], config["intermediate_size"]
    num_own, own = len(kinds) - config["num_kv_shared_layers"], config["per_layer_config"]
    values = {
        "attention.head_count_kv": [
            own.get(str(layer), {}).get("num_key_value_heads", heads) for layer in range(len(kinds))
        ],
        "attention.key_length": _full_head_dim(config),
        "attention.value_length": _full_head_dim(config),
        "attention.key_length_swa": config["head_dim"],
        "attention.value_length_swa": config["head_dim"],
        "attention.shared_kv_layers": config["num_kv_shared_layers"],
        "attention.sliding_window": config["sliding_window"],
        "attention.sliding_window_pattern": [kind == "sliding_attention" for kind in kinds],
        "embedding_length_per_layer_input": config["hidden_size_per_layer_input"] or 0,
        "final_logit_softcapping": config["final_logit_softcapping"],
        "rope.dimension_count": _full_head_dim(config),
        "rope.dimension_count_swa": config["head_dim"],
        "rope.freq_base_swa": config["rope_parameters"]["sliding_attention"]["rope_theta"],
    }
    if config["use_double_wide_mlp"] and num_own < len(kinds):
        values["feed_forward_length"] = [width if layer < num_own else 2 * width for layer in range(len(kinds))]
    if config["enable_moe_block"]:
        values |= {
            "expert_count": config["num_experts"],
            "expert_used_count": config["top_k_experts"],
            "expert_feed_forward_length": config["moe_intermediate_size"],
        }
    return values


def _split(tensors: Mapping[str, Tensor], config: Mapping[str, Any]) -> dict[str, Tensor]:
    """Rename, and say in a tensor which part of a head full layers rotate."""
    pairs = _full_head_dim(config) // 2
    rotated = int(pairs * config["rope_parameters"]["full_attention"]["partial_rotary_factor"])
    return {"rope_freqs.weight": torch.tensor([1.0] * rotated + [1e30] * (pairs - rotated)), **renamed(tensors, _NAMES)}


def _join(parts: Mapping[str, Tensor], original: Mapping[str, Tensor], _: Mapping[str, Any]) -> dict[str, Tensor]:
    return restored(parts, original, _NAMES)


TINY = {
    "gemma4": TinyFamily(config="Gemma4TextConfig", model="Gemma4ForCausalLM", fields=_GEMMA4, chat=CHAT),
    "gemma4_moe": TinyFamily(
        config="Gemma4TextConfig", model="Gemma4ForCausalLM", fields=_GEMMA4 | _GEMMA4_EXPERTS, chat=CHAT
    ),
    "gemma4_wrapped": TinyFamily(
        config="Gemma4TextConfig",
        model="Gemma4ForConditionalGeneration",
        fields=_GEMMA4,
        wrapper=("Gemma4Config", "Gemma4VisionConfig"),
        chat=CHAT,
    ),
}
TINY_GGUF = {
    "gemma4_text": TinyGguf(architecture="gemma4", values=_values, split=_split, join=_join, has_norms_after=True),
}
