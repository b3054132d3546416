"""SmolLM 3: the fields of its `config.json`."""

from dataclasses import replace

from infer_models.config.decoder_fields import (
    FULL,
    SLIDING,
    read_decoder,
    read_window,
    read_window_in_use,
    read_windows,
    require,
    with_biases,
)
from infer_models.config.json_fields import JsonFields
from infer_models.config.model_config import ModelConfig
from infer_models.config.registry import Family, default_sizes


def read_smollm3(fields: JsonFields) -> ModelConfig:
    """SmolLM 3: Llama some of whose layers have no positions; those may slide."""
    require(fields, "hidden_act", "silu")
    config = read_decoder(fields, default_theta=2_000_000.0, tied_by_default=True, pads_heads=True)
    config = with_biases(config, fields, mlp=True)
    every = fields.count("no_rope_layer_interval", 4)
    usual = [int((layer + 1) % every != 0) for layer in range(config.num_layers)]
    has_rope = fields.indices("no_rope_layers") if "no_rope_layers" in fields else usual  # 1: rotated, 0: not
    if len(has_rope) < config.num_layers:
        raise fields.invalid("no_rope_layers", f"{config.num_layers} numbers, 1 or 0, one for each layer")
    in_use = read_window_in_use(fields, default=None)
    window = read_window(fields, default=None) if "layer_types" in fields else in_use  # a list says it by itself
    types = [FULL if rotated else SLIDING for rotated in has_rope[: config.num_layers]]
    return replace(
        config,
        windows=read_windows(fields, config, window=window, default_types=types),
        ropes=tuple(rope if has_rope[layer] else None for layer, rope in enumerate(config.ropes)),
    )


FAMILIES = {
    "smollm3": Family(
        read=read_smollm3,
        build="infer_models.families.llama.model:Llama",
        defaults=default_sizes(128256, 2048, 11008, 36, 16, 4, 32768),
    ),
}
