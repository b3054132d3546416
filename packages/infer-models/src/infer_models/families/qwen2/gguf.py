"""Qwen 2 in GGUF files."""

from infer_models.gguf.architecture import Architecture

ARCHITECTURES = {"qwen2": Architecture(model_type="qwen2")}
