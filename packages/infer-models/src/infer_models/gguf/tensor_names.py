"""The models' names of the tensors of GGUF files.

token_embd.weight               model.embed_tokens.weight
blk.0.attn_q.weight             model.layers.0.self_attn.q_proj.weight
blk.0.ffn_down_exps.weight      model.layers.0.mlp.experts.0.down_proj.weight, ..., an expert each
blk.0.ffn_down.0.weight         the first of them, in files of early 2024 and before
blk.0.attn_sinks.weight         model.layers.0.self_attn.sinks, where the architecture has such a name
blk.0.ssm_a                     model.layers.0.linear_attn.A_log, likewise
output_norm.weight              model.norm.weight
output.weight                   lm_head.weight
"""

import re
from collections.abc import Mapping
from types import MappingProxyType

_LAYER = re.compile(r"blk\.(?P<layer>\d+)\.(?P<name>\w+(?:\.\w+)?)\.(?P<leaf>weight|bias|scale)")
_EXPERT = re.compile(r"(?P<stack>ffn_(?:gate|up|down))\.(?P<index>\d+)")
_VECTOR = re.compile(r"blk\.(?P<layer>\d+)\.(?P<name>\w+)")
EMBEDDING, HEAD = "token_embd.weight", "output.weight"
_OUTSIDE: Mapping[str, str] = MappingProxyType(
    {
        EMBEDDING: "model.embed_tokens.weight",
        "output_norm.weight": "model.norm.weight",
        HEAD: "lm_head.weight",
    }
)
_WITHIN: Mapping[str, str] = MappingProxyType(
    {
        "attn_norm": "input_layernorm",
        "attn_q": "self_attn.q_proj",
        "attn_k": "self_attn.k_proj",
        "attn_v": "self_attn.v_proj",
        "attn_output": "self_attn.o_proj",
        "attn_q_norm": "self_attn.q_norm",
        "attn_k_norm": "self_attn.k_norm",
        "ffn_norm": "post_attention_layernorm",
        "ffn_gate": "mlp.gate_proj",
        "ffn_up": "mlp.up_proj",
        "ffn_down": "mlp.down_proj",
        "ffn_gate_inp": "mlp.gate",
    }
)
_EXPERTS: Mapping[str, str] = MappingProxyType(
    {
        "ffn_gate_exps": "mlp.experts.{}.gate_proj",
        "ffn_up_exps": "mlp.experts.{}.up_proj",
        "ffn_down_exps": "mlp.experts.{}.down_proj",
    }
)
"""Stacks of experts, and the name of one's part."""
JOINED_EXPERTS = "ffn_gate_up_exps"
"""A stack of experts' gates and ups: all rows of an expert's gate, then those of its up."""


def model_name(name: str, own_names: Mapping[str, str]) -> str:
    """Return the models' name of a tensor; itself where there is none.

    Args:
        name: name in the file.
        own_names: names that the architecture has beside the common ones, or in their place; within a layer those of a
            part, such as `attn_q`, or of one tensor, such as `attn_sinks.weight`.
    """
    match = _LAYER.fullmatch(name)
    if match is None:
        vector = _VECTOR.fullmatch(name)
        if vector is not None and vector["name"] in own_names:
            return f"model.layers.{vector['layer']}.{own_names[vector['name']]}"
        return own_names.get(name, _OUTSIDE.get(name, name))
    whole = own_names.get(f"{match['name']}.{match['leaf']}")
    if whole is not None:
        return f"model.layers.{match['layer']}.{whole}"
    if expert := _EXPERT.fullmatch(match["name"]):
        part = _expert_part(f"{expert['stack']}_exps", own_names).format(int(expert["index"]))
        return f"model.layers.{match['layer']}.{part}.{match['leaf']}"
    within = own_names.get(match["name"], _WITHIN.get(match["name"]))
    if within is None or match["leaf"] == "scale":
        return name
    return f"model.layers.{match['layer']}.{within}.{match['leaf']}"


def name_within(name: str) -> str:
    """Return the name of a tensor's part within a layer, such as `attn_q`; "" of tensors outside."""
    match = _LAYER.fullmatch(name) or _VECTOR.fullmatch(name)
    return "" if match is None else match["name"]


def part_name(name: str, part: str) -> str:
    """Return the models' name of what is called `part` within the layer of a tensor of the file."""
    match = _LAYER.fullmatch(name) or _VECTOR.fullmatch(name)
    assert match is not None
    return f"model.layers.{match['layer']}.{part}"


def expert_names(name: str, num_experts: int, own_names: Mapping[str, str]) -> list[str]:
    """Return the models' names of the items of a stack of experts; none where the tensor is no such stack.

    Those of `JOINED_EXPERTS` are the gate and the up of each expert.

    Args:
        name: name in the file.
        num_experts: items of the stack.
        own_names: as for `model_name`; of a stack the name of an expert's part, with `{}` for the expert.
    """
    match = _LAYER.fullmatch(name)
    if match is None or match["leaf"] != "weight":
        return []
    stacks = ("ffn_gate_exps", "ffn_up_exps") if match["name"] == JOINED_EXPERTS else (match["name"],)
    if not _EXPERTS.keys() >= set(stacks):
        return []
    parts = [_expert_part(stack, own_names) for stack in stacks]
    return [
        f"model.layers.{match['layer']}.{part.format(index)}.weight" for index in range(num_experts) for part in parts
    ]


def _expert_part(stack: str, own_names: Mapping[str, str]) -> str:
    return own_names.get(stack, _EXPERTS[stack])
