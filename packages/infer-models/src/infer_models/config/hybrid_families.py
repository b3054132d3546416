"""Families some of whose layers have a state in place of keys and values: their readers, and their rows of `FAMILIES`.

layer_types  full_attention: keys and values    conv (LFM2), linear_attention (Qwen 3.5): a state
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Any

from infer_models.config.decoder_fields import FULL, read_decoder, read_moe, require, with_biases
from infer_models.config.json_fields import JsonFields
from infer_models.config.model_config import ModelConfig
from infer_models.config.registry import Family, default_sizes
from infer_models.layer_states import StateSpec

_CONVOLUTION, _LINEAR = "conv", "linear_attention"
"""Kinds of layers with a state in `layer_types`."""


def read_lfm2(fields: JsonFields) -> ModelConfig:
    """LFM2: short convolutions, and attention in some layers; without a list of these, in all."""
    config = read_decoder(fields, default_theta=1_000_000.0, tied_by_default=True)
    attending = fields.indices("full_attn_idxs") if "full_attn_idxs" in fields else range(config.num_layers)
    types = [FULL if layer in attending else _CONVOLUTION for layer in range(config.num_layers)]
    state = StateSpec(convolution=(_read_width(fields, "conv_L_cache", 3) - 1, config.hidden_size))
    return replace(
        config,
        norm_eps=fields.number("norm_eps", 1e-5),
        tie_word_embeddings=fields.flag("tie_embedding", default=config.tie_word_embeddings),
        intermediate_size=_read_lfm2_intermediate_size(fields),
        convolution_bias=fields.flag("conv_bias", default=False),
        states=_read_states(fields, config, kind=_CONVOLUTION, state=state, default_types=types),
    )


def _read_lfm2_intermediate_size(fields: JsonFields) -> int:
    """Read the MLPs' size: two thirds of the file's, times a factor and rounded up, unless the file says not to."""
    size = fields.count("block_ff_dim", fields.count("intermediate_size"))
    if not fields.flag("block_auto_adjust_ff_dim", default=True):
        return size
    size = int(2 * size / 3)
    multiple = fields.count("block_multiple_of", 256)
    return -(-int(fields.number("block_ffn_dim_multiplier", 1.0) * size) // multiple) * multiple


def read_qwen3_5(fields: JsonFields) -> ModelConfig:
    """Qwen 3.5, dense: gated delta nets, every fourth layer attention with gates, a quarter of a head rotated."""
    require(fields, "hidden_act", "silu")
    fields = fields.with_defaults({"partial_rotary_factor": 0.25})
    config = with_biases(read_decoder(fields, default_head_dim=256, rotates_part=True), fields)
    every = fields.count("full_attention_interval", 4)
    types = [FULL if (layer + 1) % every == 0 else _LINEAR for layer in range(config.num_layers)]
    return replace(
        config,
        states=_read_states(fields, config, kind=_LINEAR, state=_read_delta_net(fields), default_types=types),
    )


def read_qwen3_5_moe(fields: JsonFields) -> ModelConfig:
    """Qwen 3.5 with experts, in all layers; one expert computes all tokens."""
    inner = fields.count("moe_intermediate_size", 512)
    config = read_qwen3_5(fields.with_defaults({"intermediate_size": inner}))
    return _with_experts(config, fields, normalizes_weights=True, is_sparse=(True,) * config.num_layers)


def read_qwen3_next(fields: JsonFields) -> ModelConfig:
    """Qwen3-Next: Qwen 3.5 with experts; some layers may have MLPs."""
    config = read_qwen3_5(fields)
    dense, step = fields.indices("mlp_only_layers"), fields.count("decoder_sparse_step", 1)
    return _with_experts(
        config,
        fields,
        normalizes_weights=fields.flag("norm_topk_prob", default=True),
        is_sparse=tuple(layer not in dense and (layer + 1) % step == 0 for layer in range(config.num_layers)),
    )


def _with_experts(
    config: ModelConfig, fields: JsonFields, *, normalizes_weights: bool, is_sparse: tuple[bool, ...]
) -> ModelConfig:
    """Return `config` with the experts of the file; how many a token has is among the family's defaults."""
    moe = read_moe(
        fields,
        intermediate_size=fields.count("moe_intermediate_size", 512),
        normalizes_weights=normalizes_weights,
        is_sparse=is_sparse,
        default_per_token=8,
    )
    shared = fields.count("shared_expert_intermediate_size", 512)
    return replace(config, moe=replace(moe, shared_intermediate_size=shared))


def _read_delta_net(fields: JsonFields) -> StateSpec:
    """Read the sizes of gated delta nets.

    Raises:
        CheckpointError: keys have heads of another size than values, or the heads do not divide.
    """
    key_heads, value_heads = fields.count("linear_num_key_heads", 16), fields.count("linear_num_value_heads", 32)
    if value_heads % key_heads:
        raise fields.invalid("linear_num_value_heads", f"a multiple of `linear_num_key_heads` = {key_heads}")
    head_dim = fields.count("linear_key_head_dim", 128)
    if fields.count("linear_value_head_dim", 128) != head_dim:
        raise fields.invalid("linear_value_head_dim", f"that of keys, `linear_key_head_dim` = {head_dim}")
    width = _read_width(fields, "linear_conv_kernel_dim", 4)
    return StateSpec(
        convolution=(width - 1, (2 * key_heads + value_heads) * head_dim), matrices=(value_heads, head_dim, head_dim)
    )


def _read_width(fields: JsonFields, name: str, default: int) -> int:
    """Read over how many tokens a convolution goes.

    Raises:
        CheckpointError: it is one, which needs no state.
    """
    width = fields.count(name, default)
    if width < 2:
        raise fields.invalid(name, "a whole number of at least 2")
    return width


def _read_states(
    fields: JsonFields, config: ModelConfig, *, kind: str, state: StateSpec, default_types: Sequence[str]
) -> tuple[StateSpec | None, ...]:
    """Read which layers have a state: those that `layer_types`, or else `default_types`, calls `kind`.

    Raises:
        CheckpointError: `layer_types` does not fit the layers, or names another kind.
    """
    types = fields.texts("layer_types") if "layer_types" in fields else default_types
    if len(types) != config.num_layers or not {FULL, kind} >= set(types):
        raise fields.invalid("layer_types", f"{config.num_layers} times `{kind}` or `{FULL}`, one for each layer")
    return tuple(state if each == kind else None for each in types)


def _with(sizes: Mapping[str, Any], **fields: int) -> Mapping[str, Any]:
    return MappingProxyType({**sizes, **fields})


HYBRID_FAMILIES: Mapping[str, Family] = MappingProxyType(
    {
        "lfm2": Family(
            read=read_lfm2,
            build="infer_models.families.lfm2:Lfm2",
            defaults=default_sizes(65536, 2560, 12288, 32, 32, 8, 128_000),
        ),
        "qwen3_5_text": Family(
            read=read_qwen3_5,
            build="infer_models.families.qwen3_5:Qwen35",
            defaults=default_sizes(248320, 4096, 12288, 32, 16, 4, 32768),
        ),
        "qwen3_5_moe_text": Family(
            read=read_qwen3_5_moe,
            build="infer_models.families.qwen3_5:Qwen35",
            defaults=_with(default_sizes(248320, 2048, None, 40, 16, 2, 32768), num_experts=256, num_experts_per_tok=8),
        ),
        "qwen3_next": Family(
            read=read_qwen3_next,
            build="infer_models.families.qwen3_5:Qwen3Next",
            defaults=_with(
                default_sizes(151936, 2048, 5632, 48, 16, 2, 32768), num_experts=512, num_experts_per_tok=10
            ),
        ),
    }
)
"""These families by `model_type`; the defaults are those of `transformers`' configuration classes."""
