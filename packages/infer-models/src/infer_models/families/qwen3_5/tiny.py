"""Tiny models of Qwen 3.5 and Qwen3-Next, and what GGUF files do to their rows of heads.

Qwen 3.5       value heads in turns: the first one of each key head, then the second one, ...
Qwen3-Next     `in_proj_qkvz` as `attn_qkv`, head by head of each, and `attn_gate`
"""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from infer_models.families.qwen3_moe.tiny import expert_values
from infer_models.families.tiny_family import EXPERTS, FULL, LINEAR, TinyFamily, TinyGguf, place_of, restored

_DELTA_NET: dict[str, Any] = {
    "num_hidden_layers": 4,
    "layer_types": [LINEAR, LINEAR, FULL, LINEAR],
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 16,
    "linear_value_head_dim": 16,
}
_EXPERTS = EXPERTS | {"shared_expert_intermediate_size": 32}
_NAMES = {
    "linear_attn.in_proj_qkv.weight": "attn_qkv.weight",
    "linear_attn.in_proj_z.weight": "attn_gate.weight",
    "linear_attn.in_proj_b.weight": "ssm_beta.weight",
    "linear_attn.in_proj_a.weight": "ssm_alpha.weight",
    "linear_attn.in_proj_ba.weight": "ssm_ba.weight",
    "linear_attn.A_log": "ssm_a",
    "linear_attn.dt_bias": "ssm_dt.bias",
    "linear_attn.conv1d.weight": "ssm_conv1d.weight",
    "linear_attn.norm.weight": "ssm_norm.weight",
    "linear_attn.out_proj.weight": "ssm_out.weight",
    "mlp.shared_expert_gate.weight": "ffn_gate_inp_shexp.weight",
    "mlp.shared_expert.gate_proj.weight": "ffn_gate_shexp.weight",
    "mlp.shared_expert.up_proj.weight": "ffn_up_shexp.weight",
    "mlp.shared_expert.down_proj.weight": "ffn_down_shexp.weight",
}
_QKVZ = "linear_attn.in_proj_qkvz.weight"


def _values(config: Mapping[str, Any]) -> dict[str, Any]:
    value_heads, head_dim = config["linear_num_value_heads"], config["linear_value_head_dim"]
    values: dict[str, Any] = {
        "ssm.conv_kernel": config["linear_conv_kernel_dim"],
        "ssm.state_size": config["linear_key_head_dim"],
        "ssm.group_count": config["linear_num_key_heads"],
        "ssm.time_step_rank": value_heads,
        "ssm.inner_size": value_heads * head_dim,
        "attention.recurrent_layers": [kind == "linear_attention" for kind in config["layer_types"]],
        "full_attention_interval": 4,
        "rope.dimension_count": int(config["head_dim"] * config["rope_parameters"]["partial_rotary_factor"]),
    }
    if config["model_type"] != "qwen3_next":
        values["rope.dimension_sections"] = [11, 11, 10, 0]
    if config["model_type"] != "qwen3_5_text":
        values |= expert_values(config)
        values["expert_shared_feed_forward_length"] = config["shared_expert_intermediate_size"]
    return values


def _split(tensors: Mapping[str, Tensor], config: Mapping[str, Any]) -> dict[str, Tensor]:
    found: dict[str, Tensor] = {}
    for name, whole in tensors.items():
        place, within = place_of(name)
        if within == _QKVZ:
            qkvz = whole[_by_part(config)]
            values = config["linear_num_value_heads"] * config["linear_value_head_dim"]
            found |= {f"{place}attn_qkv.weight": qkvz[:-values], f"{place}attn_gate.weight": qkvz[-values:]}
        elif within == "linear_attn.A_log":
            found[f"{place}ssm_a"] = -torch.exp(whole[_order(within, config)])
        elif within == "linear_attn.out_proj.weight":
            found[f"{place}ssm_out.weight"] = whole[:, _order(within, config)]
        elif within.startswith("linear_attn.") and within in _NAMES:
            order = _order(within, config)
            moved = whole if order == slice(None) else whole[order]
            found[place + _NAMES[within]] = moved.squeeze(1) if "conv1d" in within else moved
        else:
            found[place + _NAMES.get(within, within)] = whole
    return found


def _join(parts: Mapping[str, Tensor], original: Mapping[str, Tensor], config: Mapping[str, Any]) -> dict[str, Tensor]:
    found = restored(parts, original, _NAMES)
    for name, whole in original.items():
        place, within = place_of(name)
        if within == _QKVZ:
            both = torch.cat([parts[f"{place}attn_qkv.weight"], parts[f"{place}attn_gate.weight"]])
            found[name] = torch.empty_like(both)
            found[name][_by_part(config)] = both
        elif within.startswith("linear_attn.") and within in _NAMES and whole.dim() > 1:
            part, order = parts[place + _NAMES[within]], _order(within, config)
            found[name] = torch.empty_like(whole)
            if within == "linear_attn.out_proj.weight":
                found[name][:, order] = part
            else:
                found[name][order] = part.view(whole.shape)
    return found


def _order(within: str, config: Mapping[str, Any]) -> Any:
    """Return the checkpoint's row, or column, that each of the file is; all of them where the order is the same."""
    key_heads, value_heads = config["linear_num_key_heads"], config["linear_num_value_heads"]
    is_small = within.rpartition("linear_attn.")[2] in ("A_log", "dt_bias", "in_proj_a.weight", "in_proj_b.weight")
    is_after_keys = "in_proj_qkv" in within or "conv1d" in within
    if config["model_type"] == "qwen3_next" or "norm" in within:
        return slice(None)
    size = 1 if is_small else config["linear_value_head_dim"]
    before = 2 * key_heads * config["linear_key_head_dim"] if is_after_keys else 0
    of_key = value_heads // key_heads
    heads = [key * of_key + turn for turn in range(of_key) for key in range(key_heads)]
    return [*range(before), *(before + head * size + row for head in heads for row in range(size))]


def _by_part(config: Mapping[str, Any]) -> list[int]:
    """Return the rows of `in_proj_qkvz` in the order of its parts: all q, all k, all v, all z."""
    key_heads, size = config["linear_num_key_heads"], config["linear_key_head_dim"]
    values = config["linear_num_value_heads"] // key_heads * config["linear_value_head_dim"]
    sizes = (size, size, values, values)
    starts = [sum(sizes[:part]) for part in range(4)]
    return [
        head * sum(sizes) + start + row
        for start, rows in zip(starts, sizes, strict=True)
        for head in range(key_heads)
        for row in range(rows)
    ]


TINY = {
    "qwen3_5": TinyFamily(config="Qwen3_5TextConfig", model="Qwen3_5ForCausalLM", fields=_DELTA_NET, has_states=True),
    "qwen3_5_moe": TinyFamily(
        config="Qwen3_5MoeTextConfig",
        model="Qwen3_5MoeForCausalLM",
        fields=_DELTA_NET | _EXPERTS,
        has_states=True,
    ),
    "qwen3_next": TinyFamily(
        config="Qwen3NextConfig", model="Qwen3NextForCausalLM", fields=_DELTA_NET | _EXPERTS, has_states=True
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
TINY_GGUF = {
    model_type: TinyGguf(
        architecture=architecture, values=_values, split=_split, join=_join, shifts_norms=True, has_norms_after=True
    )
    for model_type, architecture in {
        "qwen3_5_text": "qwen35",
        "qwen3_5_moe_text": "qwen35moe",
        "qwen3_next": "qwen3next",
    }.items()
}
