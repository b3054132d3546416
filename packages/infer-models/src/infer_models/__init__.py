"""Checkpoints, tokenizers, chat templates and the model families.

Names that need torch are imported when they are first used, so that configuration and text alone never import it.
"""

from typing import TYPE_CHECKING, Any

from infer_models.attention import AttentionSpec, KVCacheView
from infer_models.config import GenerationConfig, ModelConfig
from infer_models.errors import CheckpointError
from infer_models.families import register_family

if TYPE_CHECKING:
    from infer_models.causal_lm import CausalLM
    from infer_models.causal_view import CausalView
    from infer_models.checkpoint import save_model
    from infer_models.model_loader import load_model

__all__ = [
    "AttentionSpec",
    "CausalLM",
    "CausalView",
    "CheckpointError",
    "GenerationConfig",
    "KVCacheView",
    "ModelConfig",
    "load_model",
    "register_family",
    "save_model",
]


def __getattr__(name: str) -> Any:
    match name:
        case "CausalLM":
            from infer_models.causal_lm import CausalLM  # noqa: PLC0415 - imports torch: only when used

            return CausalLM
        case "CausalView":
            from infer_models.causal_view import CausalView  # noqa: PLC0415 - imports torch: only when used

            return CausalView
        case "load_model":
            from infer_models.model_loader import load_model  # noqa: PLC0415 - imports torch: only when used

            return load_model
        case "save_model":
            from infer_models.checkpoint import save_model  # noqa: PLC0415 - imports torch: only when used

            return save_model
        case _:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
