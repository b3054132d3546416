"""What a checkpoint's JSON files say of a model. Knows the families' fields; knows no tensor and imports no torch."""

from infer_models.config.generation_config import GenerationConfig
from infer_models.config.model_config import ModelConfig, MoEConfig, QueryScaling

__all__ = ["GenerationConfig", "MoEConfig", "ModelConfig", "QueryScaling"]
