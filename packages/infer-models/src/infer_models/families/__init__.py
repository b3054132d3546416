"""The model families: one architecture a file. Know blocks and how they are put together; know no cache and no file."""

from collections.abc import Callable, Mapping
from types import MappingProxyType

from infer_models.causal_lm import CausalLM
from infer_models.config import ModelConfig
from infer_models.families.gemma3 import Gemma3
from infer_models.families.llama import Llama
from infer_models.families.nanogpt import NanoGPT
from infer_models.families.qwen3 import Qwen3
from infer_models.layers import ParameterFactory

__all__ = ["FAMILIES", "Gemma3", "Llama", "NanoGPT", "Qwen3"]

FAMILIES: Mapping[str, Callable[[ModelConfig, ParameterFactory], CausalLM]] = MappingProxyType(
    {"llama": Llama, "qwen3": Qwen3, "gemma3_text": Gemma3, "nanogpt": NanoGPT}
)
"""The class that builds a model, by the `model_type` of its `config.json`."""
