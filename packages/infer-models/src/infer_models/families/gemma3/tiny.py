"""Tiny models of Gemma 3."""

from collections.abc import Mapping
from typing import Any

from infer_models.families.tiny_family import FULL, SLIDING, ChatStyle, TinyFamily, TinyGguf

CHAT = ChatStyle(
    template=(
        "{{ bos_token }}{% set start = '' %}{% if messages[0].role == 'system' %}"
        "{% set start = messages[0].content + '\n\n' %}{% set messages = messages[1:] %}{% endif %}"
        "{% for m in messages %}{% if (m.role == 'user') != (loop.index0 % 2 == 0) %}"
        "{{ raise_exception('User and assistant take turns') }}{% endif %}"
        "<start_of_turn>{{ 'model' if m.role == 'assistant' else m.role }}\n{{ start if loop.first }}"
        "{% if m.content is string %}{{ m.content | trim }}{% else %}{% for part in m.content %}"
        "{{ '<start_of_image>' if part.type == 'image' else part.text | trim }}{% endfor %}{% endif %}"
        "<end_of_turn>\n{% endfor %}{% if add_generation_prompt %}<start_of_turn>model\n{% endif %}"
    ),
    control_tokens=("<start_of_turn>", "<end_of_turn>", "<start_of_image>"),
    file="chat_template.jinja",
)
_GEMMA3: dict[str, Any] = {
    "num_hidden_layers": 4,
    "layer_types": [SLIDING, SLIDING, FULL, SLIDING],
    "sliding_window": 8,
    "query_pre_attn_scalar": 24,
    "rope_parameters": {
        FULL: {"rope_type": "linear", "factor": 8.0, "rope_theta": 1000000.0},
        SLIDING: {"rope_type": "default", "rope_theta": 10000.0},
    },
}


def _window(config: Mapping[str, Any]) -> dict[str, Any]:
    return {"attention.sliding_window": config["sliding_window"]}


TINY = {
    "gemma3": TinyFamily(config="Gemma3TextConfig", model="Gemma3ForCausalLM", fields=_GEMMA3, chat=CHAT),
    "gemma3_wrapped": TinyFamily(
        config="Gemma3TextConfig",
        model="Gemma3ForConditionalGeneration",
        fields=_GEMMA3,
        wrapper=("Gemma3Config", "SiglipVisionConfig"),
        chat=CHAT,
    ),
}
TINY_GGUF = {"gemma3_text": TinyGguf(architecture="gemma3", values=_window, shifts_norms=True, has_norms_after=True)}
