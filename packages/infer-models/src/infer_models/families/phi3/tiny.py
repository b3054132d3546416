"""Tiny models of Phi 3 and 4."""

from infer_models.families.tiny_family import LONGROPE_SCALING, ChatStyle, TinyFamily, TinyGguf

_CHAT = ChatStyle(
    template=(
        "{% for m in messages %}<|{{ m.role }}|>\n{{ m.content }}<|end|>\n{% endfor %}"
        "{% if add_generation_prompt %}<|assistant|>\n{% else %}{{ eos_token }}{% endif %}"
    ),
    control_tokens=("<|system|>", "<|user|>", "<|assistant|>", "<|end|>"),
)
TINY = {
    "phi3": TinyFamily(
        config="Phi3Config",
        model="Phi3ForCausalLM",
        fields={"hidden_size": 128, "rope_parameters": LONGROPE_SCALING, "sliding_window": 1000},
        chat=_CHAT,
    ),
}
TINY_GGUF = {"phi3": TinyGguf(architecture="phi3")}
