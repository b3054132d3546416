"""Tiny models of gpt-oss, and its tensors as llama.cpp's converter takes them apart: gates, ups and downs, and back.

`transformers` has all experts of a layer in one tensor, transposed, and gates and ups take turns in it:

    experts.gate_up_proj [experts, hidden, 2 * inner]      experts.0.gate_proj.weight [inner, hidden], up_proj, ...
    experts.gate_up_proj_bias [experts, 2 * inner]         gate_exps.bias [experts, inner], up_exps.bias
    experts.down_proj [experts, inner, hidden]             experts.0.down_proj.weight [hidden, inner], ...
    experts.down_proj_bias [experts, hidden]               down_exps.bias
    self_attn.sinks [heads]                                self_attn.sinks.weight
"""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from infer_models.families.tiny_family import YARN_SCALING, ChatStyle, TinyFamily, TinyGguf, num_experts

_TURNS = {"gate": slice(0, None, 2), "up": slice(1, None, 2)}
_CHAT = ChatStyle(
    template=(
        "<|start|>system<|message|>Effort: {{ reasoning_effort | default('medium') }}\nChannels: analysis, final."
        "<|end|>"
        "{% for m in messages %}{% if m.role == 'system' %}<|start|>developer<|message|>Rules:\n{{ m.content }}<|end|>"
        "{% elif m.role == 'assistant' %}<|start|>assistant<|channel|>final<|message|>{{ m.content }}<|end|>"
        "{% else %}<|start|>{{ m.role }}<|message|>{{ m.content }}<|end|>{% endif %}{% endfor %}"
        "{% if add_generation_prompt %}<|start|>assistant{% endif %}"
    ),
    control_tokens=("<|start|>", "<|message|>", "<|channel|>", "<|end|>", "<|return|>"),
    file="chat_template.jinja",
)


def _values(config: Mapping[str, Any]) -> dict[str, Any]:
    rope = config["rope_parameters"]
    return {
        "expert_count": num_experts(config),
        "expert_used_count": config["num_experts_per_tok"],
        "expert_feed_forward_length": config["intermediate_size"],
        "attention.sliding_window": config["sliding_window"],
        "rope.scaling.type": "yarn",
        "rope.scaling.factor": float(rope["factor"]),
        "rope.scaling.original_context_length": rope["original_max_position_embeddings"],
    }


def _split(tensors: Mapping[str, Tensor], _config: Mapping[str, Any]) -> dict[str, Tensor]:
    """Return the tensors of a checkpoint with a name for each part of each expert."""
    found: dict[str, Tensor] = {}
    for name, whole in tensors.items():
        place, _, within = name.rpartition(".mlp.experts.")
        match within:
            case "gate_up_proj":
                for part, own in _TURNS.items():
                    for index, expert in enumerate(whole):
                        found[f"{place}.mlp.experts.{index}.{part}_proj.weight"] = expert[:, own].T
            case "down_proj":
                for index, expert in enumerate(whole):
                    found[f"{place}.mlp.experts.{index}.down_proj.weight"] = expert.T
            case "gate_up_proj_bias":
                found |= {f"{place}.mlp.{part}_exps.bias": whole[:, own].contiguous() for part, own in _TURNS.items()}
            case "down_proj_bias":
                found[f"{place}.mlp.down_exps.bias"] = whole
            case _:
                found[f"{name}.weight" if name.endswith(".sinks") else name] = whole
    return found


def _join(parts: Mapping[str, Tensor], _: Mapping[str, Tensor], config: Mapping[str, Any]) -> dict[str, Tensor]:
    """Undo `_split`."""
    found: dict[str, Tensor] = {}
    for name, whole in parts.items():
        place = name.partition(".mlp.")[0]
        if ".mlp.experts." in name:
            names = [f"{place}.mlp.experts.{index}.{{}}_proj.weight" for index in range(num_experts(config))]
            gates, ups, downs = (
                torch.stack([parts[each.format(part)].T for each in names]) for part in ("gate", "up", "down")
            )
            found[f"{place}.mlp.experts.gate_up_proj"] = torch.stack([gates, ups], dim=-1).flatten(-2)
            found[f"{place}.mlp.experts.down_proj"] = downs
        elif name.endswith("_exps.bias"):
            pair = [parts[f"{place}.mlp.{part}_exps.bias"] for part in ("gate", "up")]
            found[f"{place}.mlp.experts.gate_up_proj_bias"] = torch.stack(pair, dim=-1).flatten(-2)
            found[f"{place}.mlp.experts.down_proj_bias"] = parts[f"{place}.mlp.down_exps.bias"]
        else:
            found[name.removesuffix(".weight") if name.endswith(".sinks.weight") else name] = whole
    return found


TINY = {
    "gpt_oss": TinyFamily(
        config="GptOssConfig",
        model="GptOssForCausalLM",
        fields={
            "num_local_experts": 6,
            "num_experts_per_tok": 3,
            "sliding_window": 8,
            "rope_parameters": YARN_SCALING | {"truncate": False},
        },
        chat=_CHAT,
    ),
}
TINY_GGUF = {
    "gpt_oss": TinyGguf(architecture="gpt-oss", values=_values, split=_split, join=_join, has_norms_after=True),
}
