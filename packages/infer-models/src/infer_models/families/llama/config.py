"""Llama 3.x: the fields of its `config.json`."""

from infer_models.config.decoder_fields import read_decoder, require, with_biases
from infer_models.config.json_fields import JsonFields
from infer_models.config.model_config import ModelConfig
from infer_models.config.registry import Family, default_sizes


def read_llama(fields: JsonFields) -> ModelConfig:
    """Llama 3.x, and models that were brought into its form: any head size, biases."""
    require(fields, "hidden_act", "silu")
    return with_biases(read_decoder(fields, pads_heads=True), fields, mlp=True)


FAMILIES = {
    "llama": Family(
        read=read_llama,
        build="infer_models.families.llama.model:Llama",
        defaults=default_sizes(32000, 4096, 11008, 32, 32, None, 2048),
        wrappers=("llava",),
    ),
}
