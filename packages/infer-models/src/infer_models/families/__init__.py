"""The model families: one architecture a file. Know blocks and how they are put together; know no cache and no file.

A family's class is imported when its first model is built.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING

from infer_models.config.json_fields import JsonFields
from infer_models.config.model_config import ModelConfig
from infer_models.config.registry import Family, add_family, find_family

if TYPE_CHECKING:
    from infer_models.causal_lm import CausalLM
    from infer_models.layers import ParameterFactory

__all__ = ["build_model", "register_family"]


def build_model(config: ModelConfig, factory: "ParameterFactory") -> "CausalLM":
    """Return a model of `config`, of the family of its `model_type`; its matrices are still to be loaded or drawn.

    Args:
        config: the architecture, as the family's reader returned it.
        factory: allocates the weights.
    """
    family = find_family(config.model_type)
    assert family is not None, f"`model_type` is {config.model_type!r}, which no family reads"
    model: CausalLM = family.builder(config, factory)
    return model


def register_family(
    model_type: str,
    *,
    read: Callable[[JsonFields], ModelConfig],
    build: "Callable[[ModelConfig, ParameterFactory], CausalLM]",
) -> None:
    """Register a family of another package in this process, which can then load its checkpoints.

    Args:
        model_type: `model_type` of its `config.json`.
        read: reader of the fields of its `config.json`.
        build: class of its models, whose weights are still to be loaded.

    Raises:
        ValueError: there is a family of this `model_type`.
    """
    add_family(model_type, Family(read=read, build=build))
