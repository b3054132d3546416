"""Qwen 3 in GGUF files."""

from infer_models.gguf.architecture import Architecture

ARCHITECTURES = {"qwen3": Architecture(model_type="qwen3")}
