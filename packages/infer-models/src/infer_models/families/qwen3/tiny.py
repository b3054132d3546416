"""Tiny models of Qwen 3."""

from infer_models.families.tiny_family import TinyFamily, TinyGguf

TINY = {"qwen3": TinyFamily(config="Qwen3Config", model="Qwen3ForCausalLM")}
TINY_GGUF = {"qwen3": TinyGguf(architecture="qwen3")}
