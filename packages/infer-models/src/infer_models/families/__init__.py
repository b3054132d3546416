"""The model families: one architecture a file. Know blocks and how they are put together; know no cache and no file."""

from collections.abc import Callable

from infer_models.causal_lm import CausalLM
from infer_models.config import ModelConfig
from infer_models.config.json_fields import JsonFields
from infer_models.config.model_config import READERS
from infer_models.families.gemma3 import Gemma3
from infer_models.families.gpt_oss import GptOss
from infer_models.families.llama import Llama
from infer_models.families.mistral import Mistral
from infer_models.families.nanogpt import NanoGPT
from infer_models.families.olmo import Olmo
from infer_models.families.phi3 import Phi3
from infer_models.families.qwen2 import Qwen2
from infer_models.families.qwen3 import Qwen3
from infer_models.families.qwen3_moe import Qwen3MoE
from infer_models.layers import ParameterFactory

__all__ = ["FAMILIES", "Gemma3", "GptOss", "Llama", "Mistral", "NanoGPT", "Olmo", "Phi3", "Qwen2", "Qwen3", "Qwen3MoE"]

FAMILIES: dict[str, Callable[[ModelConfig, ParameterFactory], CausalLM]] = {
    "llama": Llama,
    "mistral": Mistral,
    "ministral": Mistral,
    "ministral3": Mistral,
    "qwen2": Qwen2,
    "qwen3": Qwen3,
    "qwen3_moe": Qwen3MoE,
    "smollm3": Llama,
    "granite": Llama,
    "phi3": Phi3,
    "olmo2": Olmo,
    "olmo3": Olmo,
    "gemma3_text": Gemma3,
    "gpt_oss": GptOss,
    "nanogpt": NanoGPT,
}
"""The class that builds a model, by the `model_type` of its `config.json`."""


def register_family(
    model_type: str,
    *,
    read: Callable[[JsonFields], ModelConfig],
    build: Callable[[ModelConfig, ParameterFactory], CausalLM],
) -> None:
    """Let this process load checkpoints of another family.

    Args:
        model_type: the one of its `config.json`.
        read: turns the fields of its `config.json` into a configuration.
        build: makes the model, with weights that are still to be loaded.

    Raises:
        ValueError: there is a family of this `model_type`.
    """
    if model_type in FAMILIES:
        raise ValueError(f"`model_type` is {model_type!r}, of which there is a family already.")
    READERS[model_type] = read
    FAMILIES[model_type] = build
