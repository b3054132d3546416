"""Phi 3 and 4: the fields of their `config.json`."""

from dataclasses import replace

from infer_models.config.decoder_fields import read_decoder, read_window, require, with_windows
from infer_models.config.json_fields import JsonFields
from infer_models.config.model_config import ModelConfig
from infer_models.config.registry import Family, default_sizes


def read_phi3(fields: JsonFields) -> ModelConfig:
    """Phi 3 and 4: Llama with fused tensors, a part of each head rotated, LongRoPE."""
    require(fields, "hidden_act", "silu")
    config = read_decoder(fields, default_norm_eps=1e-5, rotates_part=True)
    return replace(config, windows=with_windows(config, read_window(fields, default=None)))


FAMILIES = {
    "phi3": Family(
        read=read_phi3,
        build="infer_models.families.phi3.model:Phi3",
        defaults=default_sizes(32064, 3072, 8192, 32, 32, None, 4096),
    ),
}
