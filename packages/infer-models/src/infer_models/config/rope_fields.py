"""Reads rotary frequencies from a `config.json`, in the dialects of `transformers` 4 and 5.

transformers 5    rope_parameters: {rope_type, rope_theta, factor, ...}, or one of these for each kind of layer
transformers 4    rope_theta, rope_scaling: {rope_type or type, factor, ...}, partial_rotary_factor
"""

import math
from collections.abc import Callable

from infer_models.config.json_fields import JsonFields
from infer_models.config.rope import (
    LinearScaling,
    Llama3Scaling,
    LongRopeScaling,
    NoScaling,
    RopeParameters,
    RopeScaling,
    YarnScaling,
)

DEFAULT_THETA = 10000.0


def read_rope(config: JsonFields, *, head_dim: int, default_theta: float = DEFAULT_THETA) -> RopeParameters:
    """Read a `config.json` with one rotary table.

    Args:
        config: the fields.
        head_dim: elements of a head.
        default_theta: the family's, where the file has none.

    Raises:
        CheckpointError: the scaling is none that is supported, or one of its fields is missing or does not fit.
    """
    if "rope_parameters" in config:
        return _read_parameters(
            config.nested("rope_parameters"), config, head_dim=head_dim, default_theta=default_theta
        )
    theta = config.number("rope_theta", default_theta)
    return _read_parameters(config.nested("rope_scaling"), config, head_dim=head_dim, default_theta=theta)


def read_full_and_sliding_rope(
    config: JsonFields, *, head_dim: int, full_theta: float, sliding_theta: float
) -> tuple[RopeParameters, RopeParameters]:
    """Read the tables of full and of sliding-window layers; as `transformers` 4 writes it, only full ones are scaled.

    Args:
        config: the fields.
        head_dim: elements of a head.
        full_theta: the family's default for full layers.
        sliding_theta: that for sliding layers, where `rope_local_base_freq` is not set.

    Raises:
        CheckpointError: as `read_rope`.
    """
    if "rope_parameters" in config and "full_attention" in config.nested("rope_parameters"):
        both = config.nested("rope_parameters")
        full = _read_parameters(both.nested("full_attention"), config, head_dim=head_dim, default_theta=full_theta)
        sliding = both.nested("sliding_attention")
        return full, _read_parameters(sliding, config, head_dim=head_dim, default_theta=sliding_theta)
    sliding_theta = config.number("rope_local_base_freq", sliding_theta)
    full = read_rope(config, head_dim=head_dim, default_theta=full_theta)
    return full, RopeParameters(theta=sliding_theta, scaling=NoScaling())


def _read_parameters(fields: JsonFields, config: JsonFields, *, head_dim: int, default_theta: float) -> RopeParameters:
    holder = fields if "partial_rotary_factor" in fields else config
    share = holder.number("partial_rotary_factor", 1.0)
    rotary_dim = int(head_dim * share)
    if not 2 <= rotary_dim <= head_dim or rotary_dim % 2:
        raise holder.invalid("partial_rotary_factor", f"a share of head_dim = {head_dim} that is an even number")
    kind = "rope_type" if "rope_type" in fields else "type"
    name = fields.text(kind, "default")
    if name in ("su", "yarn") and "long_factor" in fields:  # what LongRoPE was called in early files
        name = "longrope"
    read = _SCALINGS.get(name)
    if read is None:
        raise fields.invalid(kind, "one of " + ", ".join(f"`{known}`" for known in _SCALINGS))
    return RopeParameters(
        theta=fields.number("rope_theta", default_theta),
        scaling=read(fields, config, rotary_dim),
        rotary_dim=None if rotary_dim == head_dim else rotary_dim,
    )


def _read_linear(fields: JsonFields, config: JsonFields, rotary_dim: int) -> RopeScaling:
    del config, rotary_dim
    return LinearScaling(factor=fields.number("factor"))


def _read_llama3(fields: JsonFields, config: JsonFields, rotary_dim: int) -> RopeScaling:
    del config, rotary_dim
    scaling = Llama3Scaling(
        factor=fields.number("factor"),
        low_freq_factor=fields.number("low_freq_factor"),
        high_freq_factor=fields.number("high_freq_factor"),
        original_max_position_embeddings=fields.count("original_max_position_embeddings"),
    )
    if scaling.high_freq_factor <= scaling.low_freq_factor:
        raise fields.invalid("high_freq_factor", f"above `low_freq_factor` = {scaling.low_freq_factor}")
    return scaling


def _read_yarn(fields: JsonFields, config: JsonFields, rotary_dim: int) -> RopeScaling:
    del rotary_dim
    original = _read_original(fields, config)
    factor = fields.number("factor", config.count("max_position_embeddings") / original)
    if "attention_factor" in fields:
        attention_factor = fields.number("attention_factor")
    elif "mscale" in fields and "mscale_all_dim" in fields:
        weights = [
            0.1 * fields.number(name) * math.log(max(factor, 1.0)) + 1.0 for name in ("mscale", "mscale_all_dim")
        ]
        attention_factor = weights[0] / weights[1]
    else:
        attention_factor = 0.1 * math.log(max(factor, 1.0)) + 1.0
    return YarnScaling(
        factor=factor,
        original_max_position_embeddings=original,
        attention_factor=attention_factor,
        beta_fast=fields.number("beta_fast", 32.0),
        beta_slow=fields.number("beta_slow", 1.0),
        truncate=fields.flag("truncate", default=True),
    )


def _read_longrope(fields: JsonFields, config: JsonFields, rotary_dim: int) -> RopeScaling:
    original = _read_original(fields, config)
    factor = fields.number("factor", config.count("max_position_embeddings") / original)
    if "attention_factor" in fields:
        attention_factor = fields.number("attention_factor")
    else:
        attention_factor = math.sqrt(1 + math.log(factor) / math.log(original)) if factor > 1 < original else 1.0
    factors = {name: tuple(fields.numbers(name)) for name in ("short_factor", "long_factor")}
    for name, each in factors.items():
        if len(each) != rotary_dim // 2:
            raise fields.invalid(name, f"{rotary_dim // 2} numbers, one for each rotated pair of a head's elements")
    return LongRopeScaling(
        short_factors=factors["short_factor"],
        long_factors=factors["long_factor"],
        original_max_position_embeddings=original,
        attention_factor=attention_factor,
    )


def _read_original(fields: JsonFields, config: JsonFields) -> int:
    """Read the longest sequence of the first training; early files have it beside the scaling, or nowhere."""
    if "original_max_position_embeddings" in fields:
        return fields.count("original_max_position_embeddings")
    return config.count("original_max_position_embeddings", config.count("max_position_embeddings"))


_SCALINGS: dict[str, Callable[[JsonFields, JsonFields, int], RopeScaling]] = {
    "default": lambda *_: NoScaling(),
    "linear": _read_linear,
    "llama3": _read_llama3,
    "yarn": _read_yarn,
    "longrope": _read_longrope,
}
