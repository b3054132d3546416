"""Tiny models of Llama."""

from infer_models.families.tiny_family import ChatStyle, TinyFamily, TinyGguf

_CHAT = ChatStyle(
    template=(
        "{{ bos_token }}{% for m in messages %}<|start_header_id|>{{ m.role }}<|end_header_id|>\n\n"
        "{{ m.content | trim }}<|eot_id|>{% endfor %}"
        "{% if add_generation_prompt %}<|start_header_id|>assistant<|end_header_id|>\n\n{% endif %}"
    ),
    control_tokens=("<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"),
    file="chat_template.jinja",
)
_LLAVA_CHAT = ChatStyle(
    template=(
        "{% for m in messages %}{{ m.role | upper }}: "
        "{% for part in m.content | selectattr('type', 'equalto', 'image') %}<image>\n{% endfor %}"
        "{% for part in m.content | selectattr('type', 'equalto', 'text') %}{{ part.text + ' ' }}{% endfor %}"
        "{% endfor %}{% if add_generation_prompt %}ASSISTANT:{% endif %}"
    ),
    control_tokens=("<image>",),
    file="chat_template.json",
)
TINY = {
    "llama": TinyFamily(config="LlamaConfig", model="LlamaForCausalLM", chat=_CHAT),
    "llava": TinyFamily(
        config="LlamaConfig",
        model="LlavaForConditionalGeneration",
        wrapper=("LlavaConfig", "CLIPVisionConfig"),
        chat=_LLAVA_CHAT,
    ),
}
TINY_GGUF = {"llama": TinyGguf(architecture="llama", has_interleaved_heads=True)}
