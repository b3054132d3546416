"""What llama.cpp's converter does to models whose layers are of two kinds, and back: names, and rows of heads.

LFM2                            other names alone
Gemma 4                         other names, and a tensor that says which part of a head full layers rotate
Qwen 3.5                        value heads in turns: the first one of each key head, then the second one, ...
Qwen3-Next                      `in_proj_qkvz` as `attn_qkv`, head by head of each, and `attn_gate`
Granite 4                       gates and ups apart, of each expert too; vectors of Mamba 2 with two dimensions
"""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

HYBRIDS: Mapping[str, str] = {
    "lfm2": "lfm2",
    "qwen3_5_text": "qwen35",
    "qwen3_5_moe_text": "qwen35moe",
    "qwen3_next": "qwen3next",
    "gemma4_text": "gemma4",
    "granitemoehybrid": "granitehybrid",
}
"""The architecture of each family."""
_NAMES: Mapping[str, str] = {
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
    "mamba.in_proj.weight": "ssm_in.weight",
    "mamba.in_proj.bias": "ssm_in.bias",
    "mamba.conv1d.weight": "ssm_conv1d.weight",
    "mamba.conv1d.bias": "ssm_conv1d.bias",
    "mamba.A_log": "ssm_a",
    "mamba.D": "ssm_d",
    "mamba.dt_bias": "ssm_dt.bias",
    "mamba.norm.weight": "ssm_norm.weight",
    "mamba.out_proj.weight": "ssm_out.weight",
    "mamba.out_proj.bias": "ssm_out.bias",
    "block_sparse_moe.router.layer.weight": "ffn_gate_inp.weight",
}
_QKVZ = "linear_attn.in_proj_qkvz.weight"


def split_hybrid(tensors: Mapping[str, Tensor], config: Mapping[str, Any]) -> dict[str, Tensor]:
    """Return the tensors of a checkpoint with the file's names within layers, and its order of rows and columns."""
    found: dict[str, Tensor] = {}
    if config["model_type"] == "gemma4_text":
        pairs = _full_head_dim(config) // 2
        rotated = int(pairs * config["rope_parameters"]["full_attention"]["partial_rotary_factor"])
        found["rope_freqs.weight"] = torch.tensor([1.0] * rotated + [1e30] * (pairs - rotated))
    for name, whole in tensors.items():
        place, within = _place_of(name)
        if config["model_type"] == "granitemoehybrid":
            found |= {place + part: each for part, each in _granite_parts(within, whole, config).items()}
        elif name == "model.embedding_norm.weight":
            found["token_embd_norm.weight"] = whole
        elif within == _QKVZ:
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
            found[place + _NAMES.get(within, within)] = whole.squeeze(1) if "conv.conv" in within else whole
    return found


def join_hybrid(
    parts: Mapping[str, Tensor], original: Mapping[str, Tensor], config: Mapping[str, Any]
) -> dict[str, Tensor]:
    """Undo `split_hybrid` for matrices; vectors are those of the original checkpoint."""
    found: dict[str, Tensor] = {}
    for name, whole in original.items():
        place, within = _place_of(name)
        part = parts.get(place + _NAMES.get(within, within))
        if "_linear." in within:
            found[name] = _granite_whole([parts[place + each] for each in _granite_parts(within, whole, config)], whole)
        elif within == _QKVZ:
            both = torch.cat([parts[f"{place}attn_qkv.weight"], parts[f"{place}attn_gate.weight"]])
            found[name] = torch.empty_like(both)
            found[name][_by_part(config)] = both
        elif part is None or whole.dim() == 1:
            found[name] = whole
        elif within.startswith("linear_attn."):
            order = _order(within, config)
            found[name] = torch.empty_like(whole)
            if within == "linear_attn.out_proj.weight":
                found[name][:, order] = part
            else:
                found[name][order] = part.view(whole.shape)
        else:
            found[name] = part.view(whole.shape)
    return found


def hybrid_values(config: Mapping[str, Any], architecture: str) -> dict[str, Any]:
    """Return the metadata of the architecture beside the common ones."""
    kinds = config["layer_types"]
    if architecture == "lfm2":
        inner, multiple = 2 * config["intermediate_size"] // 3, config["block_multiple_of"]
        return {
            "attention.head_count_kv": [config["num_key_value_heads"] * (kind != "conv") for kind in kinds],
            "shortconv.l_cache": config["conv_L_cache"],
            "feed_forward_length": -(-inner // multiple) * multiple,
            "rope.dimension_count": None,
        }
    if architecture == "gemma4":
        return _gemma4_values(config)
    if architecture == "granitehybrid":
        return _granite_values(config)
    value_heads, head_dim = config["linear_num_value_heads"], config["linear_value_head_dim"]
    values: dict[str, Any] = {
        "ssm.conv_kernel": config["linear_conv_kernel_dim"],
        "ssm.state_size": config["linear_key_head_dim"],
        "ssm.group_count": config["linear_num_key_heads"],
        "ssm.time_step_rank": value_heads,
        "ssm.inner_size": value_heads * head_dim,
        "attention.recurrent_layers": [kind == "linear_attention" for kind in kinds],
        "full_attention_interval": 4,
        "rope.dimension_count": int(config["head_dim"] * config["rope_parameters"]["partial_rotary_factor"]),
    }
    if architecture != "qwen3next":
        values["rope.dimension_sections"] = [11, 11, 10, 0]
    if architecture != "qwen35":
        values |= {
            "expert_count": config["num_experts"],
            "expert_used_count": config["num_experts_per_tok"],
            "expert_feed_forward_length": config["moe_intermediate_size"],
            "expert_shared_feed_forward_length": config["shared_expert_intermediate_size"],
        }
    return values


def _granite_parts(within: str, whole: Tensor, config: Mapping[str, Any]) -> dict[str, Tensor]:
    """Return the tensors of the file that a tensor of Granite 4 becomes, of experts one for each part of each."""
    own = "_shexp" if config["num_local_experts"] else ""
    experts = range(config["num_local_experts"])
    match within:
        case "shared_mlp.input_linear.weight":
            return dict(zip((f"ffn_gate{own}.weight", f"ffn_up{own}.weight"), whole.chunk(2), strict=True))
        case "shared_mlp.output_linear.weight":
            return {f"ffn_down{own}.weight": whole}
        case "block_sparse_moe.input_linear.weight":
            names = [f"mlp.experts.{index}.{part}_proj.weight" for index in experts for part in ("gate", "up")]
            return dict(zip(names, (half for expert in whole for half in expert.chunk(2)), strict=True))
        case "block_sparse_moe.output_linear.weight":
            return {f"mlp.experts.{index}.down_proj.weight": expert for index, expert in enumerate(whole)}
        case "mamba.A_log":
            whole = -torch.exp(whole).unsqueeze(1)
        case "mamba.D":
            whole = whole.unsqueeze(1)
        case "mamba.norm.weight":
            whole = whole.view(config["mamba_n_groups"], -1)
        case "mamba.conv1d.weight":
            whole = whole.squeeze(1)
    return {_NAMES.get(within, within): whole}


def _granite_whole(parts: Sequence[Tensor], like: Tensor) -> Tensor:
    """Return the tensor of a checkpoint, of the shape of `like`, that these parts make up."""
    return torch.cat([each.flatten(0, -2) for each in parts]).view(like.shape)


def _granite_values(config: Mapping[str, Any]) -> dict[str, Any]:
    is_mamba = [kind == "linear_attention" for kind in config["layer_types"]]
    return {
        "attention.head_count_kv": [0 if each else config["num_key_value_heads"] for each in is_mamba],
        "attention.key_length": None,
        "attention.value_length": None,
        "context_length": 1 << 20,
        "rope.scaling.finetuned": False,
        "expert_count": config["num_local_experts"],
        "expert_used_count": config["num_experts_per_tok"],
        "expert_shared_feed_forward_length": config["shared_intermediate_size"],
        "ssm.conv_kernel": config["mamba_d_conv"],
        "ssm.state_size": config["mamba_d_state"],
        "ssm.group_count": config["mamba_n_groups"],
        "ssm.inner_size": config["mamba_expand"] * config["hidden_size"],
        "ssm.time_step_rank": config["mamba_n_heads"],
    }


def _full_head_dim(config: Mapping[str, Any]) -> int:
    layer = str(config["layer_types"].index("full_attention"))
    return int(config["per_layer_config"][layer]["head_dim"])


def _gemma4_values(config: Mapping[str, Any]) -> dict[str, Any]:
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


def _place_of(name: str) -> tuple[str, str]:
    """Return a name's beginning, up to its layer, and its end; of tensors outside nothing and all."""
    parts = name.split(".")
    return (".".join(parts[:3]) + ".", ".".join(parts[3:])) if parts[1] == "layers" else ("", name)


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
