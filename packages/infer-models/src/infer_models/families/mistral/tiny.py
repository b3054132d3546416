"""Tiny models of Mistral, Ministral and Mixtral."""

from collections.abc import Mapping
from typing import Any

from infer_models.families.tiny_family import FULL, SLIDING, YARN_SCALING, ChatStyle, TinyFamily, TinyGguf, num_experts

_CHAT = ChatStyle(
    template=(
        "{{ bos_token }}{% for m in messages %}"
        "{% if m.role == 'system' %}[SYSTEM_PROMPT]{{ m.content }}[/SYSTEM_PROMPT]"
        "{% elif m.role == 'user' %}[INST]{% if m.content is string %}{{ m.content }}"
        "{% else %}{% for part in m.content %}{{ part.text if part.type == 'text' else '[IMG]' }}{% endfor %}"
        "{% endif %}[/INST]{% elif m.role == 'assistant' %}{{ m.content + eos_token }}"
        "{% else %}{{ raise_exception('There is no role ' + m.role) }}{% endif %}{% endfor %}"
    ),
    control_tokens=("[INST]", "[/INST]", "[SYSTEM_PROMPT]", "[/SYSTEM_PROMPT]", "[IMG]"),
)


def _experts(config: Mapping[str, Any]) -> dict[str, Any]:
    return {"expert_count": num_experts(config), "expert_used_count": config["num_experts_per_tok"]}


TINY = {
    "mistral": TinyFamily(config="MistralConfig", model="MistralForCausalLM", fields={"sliding_window": 8}, chat=_CHAT),
    "ministral": TinyFamily(
        config="MinistralConfig",
        model="MinistralForCausalLM",
        fields={"sliding_window": 8, "layer_types": [FULL, SLIDING, SLIDING]},
        chat=_CHAT,
    ),
    "ministral3": TinyFamily(
        config="Ministral3Config",
        model="Ministral3ForCausalLM",
        fields={"rope_parameters": YARN_SCALING | {"llama_4_scaling_beta": 0.1}},
        chat=_CHAT,
    ),
    "mixtral": TinyFamily(
        config="MixtralConfig",
        model="MixtralForCausalLM",
        fields={"num_local_experts": 6, "num_experts_per_tok": 2, "intermediate_size": 48},
        chat=_CHAT,
    ),
    "mistral3": TinyFamily(
        config="MistralConfig",
        model="Mistral3ForConditionalGeneration",
        fields={"sliding_window": None},
        wrapper=("Mistral3Config", "PixtralVisionConfig"),
        chat=_CHAT,
    ),
}
TINY_GGUF = {
    "ministral3": TinyGguf(architecture="mistral3", has_interleaved_heads=True),
    "mixtral": TinyGguf(architecture="llama", values=_experts, has_interleaved_heads=True),
}
