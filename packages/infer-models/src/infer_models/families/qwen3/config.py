"""Qwen 3, dense: the fields of its `config.json`."""

from infer_models.config.decoder_fields import read_decoder, require, with_biases
from infer_models.config.json_fields import JsonFields
from infer_models.config.model_config import ModelConfig
from infer_models.config.registry import Family, default_sizes
from infer_models.families.qwen2.config import with_later_windows


def read_qwen3(fields: JsonFields) -> ModelConfig:
    """Qwen 3, dense; the later layers may slide."""
    require(fields, "hidden_act", "silu")
    return with_later_windows(with_biases(read_decoder(fields, default_head_dim=128), fields), fields)


FAMILIES = {
    "qwen3": Family(
        read=read_qwen3,
        build="infer_models.families.qwen3.model:Qwen3",
        defaults=default_sizes(151936, 4096, 22016, 32, 32, 32, 32768),
    ),
}
