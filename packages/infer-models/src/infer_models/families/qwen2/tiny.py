"""Tiny models of Qwen 2."""

from infer_models.families.tiny_family import TinyFamily, TinyGguf

TINY = {"qwen2": TinyFamily(config="Qwen2Config", model="Qwen2ForCausalLM")}
TINY_GGUF = {"qwen2": TinyGguf(architecture="qwen2")}
