"""Tiny models of Granite 4; in GGUF files gates and ups are apart, and vectors of Mamba 2 have two dimensions."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from infer_models.families.granite.tiny import CHAT, MULTIPLIERS, multipliers
from infer_models.families.tiny_family import FULL, LINEAR, TinyFamily, TinyGguf, place_of, restored

_MAMBA2: dict[str, Any] = {
    "num_hidden_layers": 4,
    "layer_types": [LINEAR, LINEAR, FULL, LINEAR],
    "mamba_n_heads": 8,
    "mamba_n_groups": 2,
    "mamba_d_state": 16,
    "mamba_chunk_size": 32,
}
_NAMES = {
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


def _values(config: Mapping[str, Any]) -> dict[str, Any]:
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
        **multipliers(config),
    }


def _parts(within: str, whole: Tensor, config: Mapping[str, Any]) -> dict[str, Tensor]:
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


def _whole(parts: Sequence[Tensor], like: Tensor) -> Tensor:
    """Return the tensor of a checkpoint, of the shape of `like`, that these parts make up."""
    return torch.cat([each.flatten(0, -2) for each in parts]).view(like.shape)


def _split(tensors: Mapping[str, Tensor], config: Mapping[str, Any]) -> dict[str, Tensor]:
    found: dict[str, Tensor] = {}
    for name, whole in tensors.items():
        place, within = place_of(name)
        found |= {place + part: each for part, each in _parts(within, whole, config).items()}
    return found


def _join(parts: Mapping[str, Tensor], original: Mapping[str, Tensor], config: Mapping[str, Any]) -> dict[str, Tensor]:
    found = restored(parts, original, _NAMES)
    for name, whole in original.items():
        place, within = place_of(name)
        if "_linear." in within:
            found[name] = _whole([parts[place + each] for each in _parts(within, whole, config)], whole)
    return found


TINY = {
    "granitemoehybrid": TinyFamily(
        config="GraniteMoeHybridConfig",
        model="GraniteMoeHybridForCausalLM",
        fields=MULTIPLIERS
        | _MAMBA2
        | {"num_local_experts": 6, "num_experts_per_tok": 2, "shared_intermediate_size": 80},
        has_states=True,
        chat=CHAT,
    ),
}
TINY_GGUF = {
    "granitemoehybrid": TinyGguf(
        architecture="granitehybrid", values=_values, split=_split, join=_join, has_interleaved_heads=True
    ),
}
