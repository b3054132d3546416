"""Tiny models of LFM2."""

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from infer_models.families.tiny_family import FULL, TinyFamily, TinyGguf, renamed, restored

_NAMES = {
    "model.embedding_norm.weight": "token_embd_norm.weight",
    "operator_norm.weight": "attn_norm.weight",
    "self_attn.out_proj.weight": "attn_output.weight",
    "self_attn.q_layernorm.weight": "attn_q_norm.weight",
    "self_attn.k_layernorm.weight": "attn_k_norm.weight",
    "conv.conv.weight": "shortconv.conv.weight",
    "conv.in_proj.weight": "shortconv.in_proj.weight",
    "conv.out_proj.weight": "shortconv.out_proj.weight",
    "feed_forward.w1.weight": "ffn_gate.weight",
    "feed_forward.w2.weight": "ffn_down.weight",
    "feed_forward.w3.weight": "ffn_up.weight",
}


def _values(config: Mapping[str, Any]) -> dict[str, Any]:
    inner, multiple = 2 * config["intermediate_size"] // 3, config["block_multiple_of"]
    return {
        "attention.head_count_kv": [config["num_key_value_heads"] * (kind != "conv") for kind in config["layer_types"]],
        "shortconv.l_cache": config["conv_L_cache"],
        "feed_forward_length": -(-inner // multiple) * multiple,
        "rope.dimension_count": None,
    }


def _split(tensors: Mapping[str, Tensor], _: Mapping[str, Any]) -> dict[str, Tensor]:
    flat = {name: whole.squeeze(1) if "conv.conv" in name else whole for name, whole in tensors.items()}
    return renamed(flat, _NAMES)


def _join(parts: Mapping[str, Tensor], original: Mapping[str, Tensor], _: Mapping[str, Any]) -> dict[str, Tensor]:
    return restored(parts, original, _NAMES)


TINY = {
    "lfm2": TinyFamily(
        config="Lfm2Config",
        model="Lfm2ForCausalLM",
        fields={"layer_types": ["conv", FULL, "conv"], "block_multiple_of": 16},
        has_states=True,
    ),
}
TINY_GGUF = {"lfm2": TinyGguf(architecture="lfm2", values=_values, split=_split, join=_join, has_norms_after=True)}
