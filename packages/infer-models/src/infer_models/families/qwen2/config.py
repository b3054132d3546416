"""Qwen 2 and 2.5: the fields of their `config.json`."""

from dataclasses import replace

from infer_models.config.decoder_fields import FULL, SLIDING, read_decoder, read_window_in_use, read_windows, require
from infer_models.config.json_fields import JsonFields
from infer_models.config.model_config import ModelConfig
from infer_models.config.registry import Family, default_sizes


def read_qwen2(fields: JsonFields) -> ModelConfig:
    """Qwen 2 and 2.5: Llama with biases; the later layers may slide."""
    require(fields, "hidden_act", "silu")
    return with_later_windows(read_decoder(fields, pads_heads=True), fields)


def with_later_windows(config: ModelConfig, fields: JsonFields) -> ModelConfig:
    """Return `config` with the windows of Qwen 2 and 3: of the later layers, if `use_sliding_window` says so."""
    window = read_window_in_use(fields, default=4096)
    first = fields.whole_number("max_window_layers", 28)
    types = [SLIDING if layer >= first else FULL for layer in range(config.num_layers)]
    return replace(config, windows=read_windows(fields, config, window=window, default_types=types))


FAMILIES = {
    "qwen2": Family(
        read=read_qwen2,
        build="infer_models.families.qwen2.model:Qwen2",
        defaults=default_sizes(151936, 4096, 22016, 32, 32, 32, 32768),
    ),
}
