"""Mistral, Ministral and Mixtral: the fields of their `config.json`."""

from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any

from infer_models.config.decoder_fields import (
    SLIDING,
    read_decoder,
    read_moe,
    read_window,
    read_windows,
    require,
    with_windows,
)
from infer_models.config.json_fields import JsonFields
from infer_models.config.model_config import ModelConfig, QueryScaling
from infer_models.config.registry import Family, default_sizes
from infer_models.config.rope_fields import read_original_positions, rope_fields

_MINISTRAL3_ROPE: Mapping[str, Any] = MappingProxyType(
    {
        "rope_type": "yarn",
        "rope_theta": 1_000_000.0,
        "factor": 16.0,
        "original_max_position_embeddings": 16384,
        "mscale": 1.0,
        "mscale_all_dim": 1.0,
        "llama_4_scaling_beta": 0.1,
    }
)
"""The rotary table of files of Ministral 3 that have none."""


def read_mistral(fields: JsonFields) -> ModelConfig:
    """Mistral: Llama whose layers may slide. An absent window is that of Mistral 7B; null is none.

    A file with `layer_types` is of Ministral 8B, as `transformers` takes it.
    """
    if "layer_types" in fields:
        return read_ministral(fields)
    require(fields, "hidden_act", "silu")
    config = read_decoder(fields, pads_heads=True)
    return replace(config, windows=with_windows(config, read_window(fields, default=4096)))


def read_ministral(fields: JsonFields) -> ModelConfig:
    """Ministral 8B: Mistral of which only some layers slide."""
    require(fields, "hidden_act", "silu")
    config = read_decoder(fields, pads_heads=True)
    window = read_window(fields, default=4096)
    windows = read_windows(fields, config, window=window, default_types=[SLIDING] * config.num_layers)
    return replace(config, windows=windows)


def read_mixtral(fields: JsonFields) -> ModelConfig:
    """Mixtral: Mistral with experts in every layer."""
    require(fields, "hidden_act", "silu")
    config = read_decoder(fields, default_theta=1_000_000.0, default_norm_eps=1e-5, pads_heads=True)
    moe = read_moe(
        fields,
        intermediate_size=config.intermediate_size,
        normalizes_weights=True,
        default_per_token=2,
        default_experts=8,
        is_sparse=(True,) * config.num_layers,
    )
    return replace(config, moe=moe, windows=with_windows(config, read_window(fields, default=None)))


def read_ministral3(fields: JsonFields) -> ModelConfig:
    """Ministral 3: Mistral whose queries grow beyond the positions of its first training."""
    require(fields, "hidden_act", "silu")
    config = read_decoder(
        fields,
        default_head_dim=128,
        default_norm_eps=1e-5,
        default_rope=_MINISTRAL3_ROPE,
    )
    rope = rope_fields(fields, default=_MINISTRAL3_ROPE)
    scaling = None
    if "llama_4_scaling_beta" in rope:
        scaling = QueryScaling(
            beta=rope.number("llama_4_scaling_beta"),
            original_max_position_embeddings=read_original_positions(rope, fields),
        )
    return replace(
        config,
        query_scaling=scaling,
        windows=with_windows(config, read_window(fields, default=None)),
    )


FAMILIES = {
    "mistral": Family(
        read=read_mistral,
        build="infer_models.families.mistral.model:Mistral",
        defaults=default_sizes(32000, 4096, 14336, 32, 32, 8, 131072),
        wrappers=("mistral3",),
    ),
    "ministral": Family(
        read=read_ministral,
        build="infer_models.families.mistral.model:Mistral",
        defaults=default_sizes(32000, 4096, 14336, 32, 32, 8, 131072),
    ),
    "ministral3": Family(
        read=read_ministral3,
        build="infer_models.families.mistral.model:Mistral",
        defaults=default_sizes(131072, 4096, 14336, 34, 32, 8, 262144),
    ),
    "mixtral": Family(
        read=read_mixtral,
        build="infer_models.families.mistral.model:Mixtral",
        defaults=default_sizes(32000, 4096, 14336, 32, 32, 8, 131072),
    ),
}
