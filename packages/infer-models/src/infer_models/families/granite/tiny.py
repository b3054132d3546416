"""Tiny models of Granite 3."""

from collections.abc import Mapping
from typing import Any

from infer_models.families.tiny_family import ChatStyle, TinyFamily, TinyGguf

CHAT = ChatStyle(
    template=(
        "{% for m in messages %}<|start_of_role|>{{ m.role }}<|end_of_role|>{{ m.content + eos_token }}\n{% endfor %}"
        "{% if add_generation_prompt %}<|start_of_role|>assistant<|end_of_role|>{% endif %}"
    ),
    control_tokens=("<|start_of_role|>", "<|end_of_role|>"),
    file="chat_template.jinja",
)
MULTIPLIERS: dict[str, Any] = {
    "embedding_multiplier": 12.0,
    "attention_multiplier": 0.15,
    "residual_multiplier": 0.22,
    "logits_scaling": 8.0,
}


def multipliers(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the metadata of the four multipliers in GGUF files."""
    return {
        "attention.scale": config["attention_multiplier"],
        "embedding_scale": config["embedding_multiplier"],
        "residual_scale": config["residual_multiplier"],
        "logit_scale": config["logits_scaling"],
    }


TINY = {"granite": TinyFamily(config="GraniteConfig", model="GraniteForCausalLM", fields=MULTIPLIERS, chat=CHAT)}
TINY_GGUF = {"granite": TinyGguf(architecture="granite", values=multipliers, has_interleaved_heads=True)}
