"""OLMo 2 and 3: the fields of their `config.json`."""

from dataclasses import replace

from infer_models.config.decoder_fields import (
    FULL,
    SLIDING,
    read_decoder,
    read_window,
    read_windows,
    require,
    with_biases,
)
from infer_models.config.json_fields import JsonFields
from infer_models.config.model_config import ModelConfig
from infer_models.config.registry import Family, default_sizes
from infer_models.config.rope_fields import read_full_and_sliding_rope


def read_olmo2(fields: JsonFields) -> ModelConfig:
    """OLMo 2: norms after attention and MLP, and over all heads of queries and keys."""
    require(fields, "hidden_act", "silu")
    return with_biases(read_decoder(fields, default_norm_eps=1e-5), fields)


def read_olmo3(fields: JsonFields) -> ModelConfig:
    """OLMo 3: OLMo 2 with three sliding layers to one full one; only full ones scale their frequencies."""
    config = read_olmo2(fields)
    types = [FULL if (layer + 1) % 4 == 0 else SLIDING for layer in range(config.num_layers)]
    windows = read_windows(fields, config, window=read_window(fields, default=4096), default_types=types)
    theta = fields.number("rope_theta", 500_000.0)
    full, sliding = read_full_and_sliding_rope(fields, head_dim=config.head_dim, full_theta=theta, sliding_theta=theta)
    kinds = fields.texts("layer_types") if "layer_types" in fields else types
    return replace(config, windows=windows, ropes=tuple(full if kind == FULL else sliding for kind in kinds))


FAMILIES = {
    "olmo2": Family(
        read=read_olmo2,
        build="infer_models.families.olmo.model:Olmo",
        defaults=default_sizes(50304, 4096, 11008, 32, 32, None, 2048),
    ),
    "olmo3": Family(
        read=read_olmo3,
        build="infer_models.families.olmo.model:Olmo",
        defaults=default_sizes(50304, 4096, 11008, 32, 32, None, 2048),
    ),
}
