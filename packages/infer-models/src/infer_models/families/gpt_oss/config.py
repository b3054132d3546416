"""gpt-oss: the fields of its `config.json`."""

from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any

from infer_models.config.decoder_fields import FULL, SLIDING, read_decoder, read_moe, read_window, read_windows, require
from infer_models.config.json_fields import JsonFields
from infer_models.config.model_config import ModelConfig
from infer_models.config.registry import Family, default_sizes

_ROPE: Mapping[str, Any] = MappingProxyType(
    {"rope_type": "yarn", "factor": 32.0, "truncate": False, "original_max_position_embeddings": 4096}
)
"""The rotary table of files that have none."""


def read_gpt_oss(fields: JsonFields) -> ModelConfig:
    """gpt-oss: experts in every layer, every second layer sliding, attention sinks, biases."""
    require(fields, "hidden_act", "silu")
    config = read_decoder(
        fields,
        default_head_dim=64,
        default_theta=150_000.0,
        default_dtype="bfloat16",
        default_norm_eps=1e-5,
        default_rope=_ROPE,
    )
    if not fields.flag("attention_bias", default=True):
        raise fields.invalid("attention_bias", "true: models without biases are not supported")
    types = [SLIDING if layer % 2 == 0 else FULL for layer in range(config.num_layers)]
    return replace(
        config,
        windows=read_windows(fields, config, window=read_window(fields, default=128), default_types=types),
        moe=replace(
            read_moe(
                fields,
                intermediate_size=config.intermediate_size,
                normalizes_weights=True,
                default_per_token=4,
                is_sparse=(True,) * config.num_layers,
            ),
            swiglu_alpha=fields.number("swiglu_alpha", 1.702),
            swiglu_limit=fields.number("swiglu_limit", 7.0),
        ),
        has_parts_apart=fields.flag("has_parts_apart", default=False),
    )


FAMILIES = {
    "gpt_oss": Family(
        read=read_gpt_oss,
        build="infer_models.families.gpt_oss.model:GptOss",
        defaults=default_sizes(201088, 2880, 2880, 36, 64, 8, 131072),
    ),
}
