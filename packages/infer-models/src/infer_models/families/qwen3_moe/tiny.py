"""Tiny models of Qwen 3 with experts."""

from collections.abc import Mapping
from typing import Any

from infer_models.families.tiny_family import EXPERTS, TinyFamily, TinyGguf, num_experts


def expert_values(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the metadata of experts in GGUF files."""
    return {
        "expert_count": num_experts(config),
        "expert_used_count": config["num_experts_per_tok"],
        "expert_feed_forward_length": config["moe_intermediate_size"],
    }


TINY = {
    "qwen3_moe": TinyFamily(
        config="Qwen3MoeConfig",
        model="Qwen3MoeForCausalLM",
        fields=EXPERTS | {"norm_topk_prob": True},
    ),
}
TINY_GGUF = {"qwen3_moe": TinyGguf(architecture="qwen3moe", values=expert_values)}
