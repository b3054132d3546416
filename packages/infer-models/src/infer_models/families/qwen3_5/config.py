"""Qwen 3.5, dense and with experts, and Qwen3-Next: the fields of their `config.json`."""

from dataclasses import replace

from infer_models.config.decoder_fields import (
    FULL,
    read_decoder,
    read_moe,
    read_states,
    read_width,
    require,
    with_biases,
)
from infer_models.config.json_fields import JsonFields
from infer_models.config.model_config import ModelConfig
from infer_models.config.registry import Family, default_sizes
from infer_models.layer_states import StateHeads, StateSpec

_LINEAR = "linear_attention"
"""The kind of layers with a state in `layer_types`."""


def read_qwen3_5(fields: JsonFields) -> ModelConfig:
    """Qwen 3.5, dense: gated delta nets, every fourth layer attention with gates, a quarter of a head rotated."""
    require(fields, "hidden_act", "silu")
    fields = fields.with_defaults({"partial_rotary_factor": 0.25})
    config = with_biases(read_decoder(fields, default_head_dim=256, rotates_part=True), fields)
    every = fields.count("full_attention_interval", 4)
    types = [FULL if (layer + 1) % every == 0 else _LINEAR for layer in range(config.num_layers)]
    return replace(
        config,
        states=read_states(fields, config, kind=_LINEAR, state=_read_delta_net(fields), default_types=types),
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
    width = read_width(fields, "linear_conv_kernel_dim", 4)
    keys, values = StateHeads(key_heads, head_dim), StateHeads(value_heads, head_dim)
    return StateSpec(num_before=width - 1, parts=(keys, keys, values), matrices=(value_heads, head_dim, head_dim))


FAMILIES = {
    "qwen3_5_text": Family(
        read=read_qwen3_5,
        build="infer_models.families.qwen3_5.model:Qwen35",
        defaults=default_sizes(248320, 4096, 12288, 32, 16, 4, 32768),
        wrappers=("qwen3_5",),
    ),
    "qwen3_5_moe_text": Family(
        read=read_qwen3_5_moe,
        build="infer_models.families.qwen3_5.model:Qwen35",
        defaults={**default_sizes(248320, 2048, None, 40, 16, 2, 32768), "num_experts": 256, "num_experts_per_tok": 8},
        wrappers=("qwen3_5_moe",),
    ),
    "qwen3_next": Family(
        read=read_qwen3_next,
        build="infer_models.families.qwen3_5.model:Qwen3Next",
        defaults={**default_sizes(151936, 2048, 5632, 48, 16, 2, 32768), "num_experts": 512, "num_experts_per_tok": 10},
    ),
}
