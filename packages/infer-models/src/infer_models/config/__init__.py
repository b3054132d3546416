"""Reads a checkpoint's JSON files: architecture and generation. Knows the families' fields; imports no torch."""

from infer_models.config.generation_config import GenerationConfig
from infer_models.config.model_config import ModelConfig, MoEConfig, QueryScaling

__all__ = ["GenerationConfig", "MoEConfig", "ModelConfig", "QueryScaling"]
