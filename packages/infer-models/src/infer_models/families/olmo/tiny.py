"""Tiny models of OLMo 2 and 3."""

from infer_models.families.tiny_family import FULL, SLIDING, YARN_SCALING, ChatStyle, TinyFamily, TinyGguf

_CHAT = ChatStyle(
    template=(
        "{{ bos_token }}{% for m in messages %}<|{{ m.role }}|>\n{{ m.content }}"
        "{{ eos_token if m.role == 'assistant' }}{{ '\n' if not loop.last }}{% endfor %}"
        "{% if add_generation_prompt %}\n<|assistant|>\n{% endif %}"
    ),
    file="chat_template.jinja",
)
TINY = {
    "olmo2": TinyFamily(config="Olmo2Config", model="Olmo2ForCausalLM", chat=_CHAT),
    "olmo3": TinyFamily(
        config="Olmo3Config",
        model="Olmo3ForCausalLM",
        fields={
            "sliding_window": 8,
            "layer_types": [SLIDING, FULL, SLIDING],
            "rope_parameters": {FULL: YARN_SCALING, SLIDING: {"rope_type": "default", "rope_theta": 10000.0}},
        },
    ),
}
TINY_GGUF = {"olmo2": TinyGguf(architecture="olmo2", has_norms_after=True)}
