"""Qwen 3 with experts: the fields of its `config.json`."""

from dataclasses import replace

from infer_models.config.decoder_fields import (
    read_decoder,
    read_moe,
    read_window_in_use,
    require,
    with_biases,
    with_windows,
)
from infer_models.config.json_fields import JsonFields
from infer_models.config.model_config import ModelConfig
from infer_models.config.registry import Family, default_sizes


def read_qwen3_moe(fields: JsonFields) -> ModelConfig:
    """Qwen 3 with experts; some layers may have MLPs, and all may slide."""
    require(fields, "hidden_act", "silu")
    config = with_biases(read_decoder(fields), fields)
    window = read_window_in_use(fields, default=4096)
    dense, step = fields.indices("mlp_only_layers"), fields.count("decoder_sparse_step", 1)
    return replace(
        config,
        windows=with_windows(config, window),
        moe=read_moe(
            fields,
            intermediate_size=fields.count("moe_intermediate_size", 768),
            normalizes_weights=fields.flag("norm_topk_prob", default=False),
            default_per_token=8,
            is_sparse=tuple(layer not in dense and (layer + 1) % step == 0 for layer in range(config.num_layers)),
        ),
    )


FAMILIES = {
    "qwen3_moe": Family(
        read=read_qwen3_moe,
        build="infer_models.families.qwen3_moe.model:Qwen3MoE",
        defaults=default_sizes(151936, 2048, 6144, 24, 32, 4, 32768),
    ),
}
