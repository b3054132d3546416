"""Granite 3: the fields of its `config.json`."""

from infer_models.config.decoder_fields import read_decoder, require, with_biases, with_multipliers
from infer_models.config.json_fields import JsonFields
from infer_models.config.model_config import ModelConfig
from infer_models.config.registry import Family, default_sizes


def read_granite(fields: JsonFields) -> ModelConfig:
    """Granite 3: Llama with four multipliers."""
    require(fields, "hidden_act", "silu")
    return with_multipliers(with_biases(read_decoder(fields, pads_heads=True), fields, mlp=True), fields)


FAMILIES = {
    "granite": Family(
        read=read_granite,
        build="infer_models.families.llama.model:Llama",
        defaults=default_sizes(32000, 4096, 11008, 32, 32, None, 2048),
    ),
}
