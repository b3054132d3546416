"""LFM2: the fields of its `config.json`."""

from dataclasses import replace

from infer_models.config.decoder_fields import FULL, read_decoder, read_states, read_width
from infer_models.config.json_fields import JsonFields
from infer_models.config.model_config import ModelConfig
from infer_models.config.registry import Family, default_sizes
from infer_models.layer_states import StateHeads, StateSpec

_CONVOLUTION = "conv"
"""The kind of layers with a state in `layer_types`."""


def read_lfm2(fields: JsonFields) -> ModelConfig:
    """LFM2: short convolutions, and attention in some layers; without a list of these, in all."""
    config = read_decoder(fields, default_theta=1_000_000.0, tied_by_default=True)
    attending = fields.indices("full_attn_idxs") if "full_attn_idxs" in fields else range(config.num_layers)
    types = [FULL if layer in attending else _CONVOLUTION for layer in range(config.num_layers)]
    width = read_width(fields, "conv_L_cache", 3)
    state = StateSpec(num_before=width - 1, parts=(StateHeads(config.hidden_size, 1),))
    return replace(
        config,
        norm_eps=fields.number("norm_eps", 1e-5),
        tie_word_embeddings=fields.flag("tie_embedding", default=config.tie_word_embeddings),
        intermediate_size=_read_lfm2_intermediate_size(fields),
        convolution_bias=fields.flag("conv_bias", default=False),
        states=read_states(fields, config, kind=_CONVOLUTION, state=state, default_types=types),
    )


def _read_lfm2_intermediate_size(fields: JsonFields) -> int:
    """Read the MLPs' size: two thirds of the file's, times a factor and rounded up, unless the file says not to."""
    size = fields.count("block_ff_dim", fields.count("intermediate_size"))
    if not fields.flag("block_auto_adjust_ff_dim", default=True):
        return size
    size = int(2 * size / 3)
    multiple = fields.count("block_multiple_of", 256)
    return -(-int(fields.number("block_ffn_dim_multiplier", 1.0) * size) // multiple) * multiple


FAMILIES = {
    "lfm2": Family(
        read=read_lfm2,
        build="infer_models.families.lfm2.model:Lfm2",
        defaults=default_sizes(65536, 2560, 12288, 32, 32, 8, 128_000),
    ),
}
