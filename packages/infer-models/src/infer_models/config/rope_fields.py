"""Reads rotary frequencies from a `config.json`, in the dialects of `transformers` 4 and 5, and in both at once.

transformers 5    rope_parameters: {rope_type, rope_theta, factor, ...}, or one of these for each kind of layer
transformers 4    rope_theta, rope_scaling: {rope_type or type, factor, ...}, partial_rotary_factor
both              rope_scaling wins, if it is not empty; absent fields are read beside it, then are the family's

As `transformers` 5 does; where it would drop a value that differs, the file is refused.
"""

import math
from collections.abc import Callable, Mapping
from typing import Any

from infer_models.config.json_fields import JsonFields
from infer_models.config.rope import (
    DynamicScaling,
    LinearScaling,
    Llama3Scaling,
    LongRopeScaling,
    NoScaling,
    ProportionalScaling,
    RopeParameters,
    RopeScaling,
    YarnScaling,
)
from infer_models.errors import CheckpointError

DEFAULT_THETA = 10000.0
_NEWER, _OLDER = "rope_parameters", "rope_scaling"
_FULL, _SLIDING = "full_attention", "sliding_attention"


def rope_fields(
    config: JsonFields, *, default_theta: float = DEFAULT_THETA, default: Mapping[str, Any] | None = None
) -> JsonFields:
    """Return the fields of a model's one rotary table, or of that of its full layers.

    Args:
        config: the fields of the file.
        default_theta: base of the family, where the file has none.
        default: table of the family, where the file has none.

    Raises:
        CheckpointError: a field of the two dialects contradicts the other.
    """
    newer, older = config.nested(_NEWER), config.nested(_OLDER)
    if _FULL in newer or _SLIDING in newer:
        full = newer.nested(_FULL)
        return full.with_fields(older, older.names) if older.names else full
    if not older.names:
        return newer if newer.names or default is None else newer.with_defaults(default)
    if "rope_theta" in newer and "rope_theta" not in older and "rope_theta" not in config:
        theta = newer.number("rope_theta")
        if theta != default_theta:
            raise CheckpointError(
                f"{config.path}: `{_NEWER}.rope_theta` is {theta:g}, but `{_OLDER}`, which is read in its place, has "
                "no `rope_theta`; put all fields into one of the two."
            )
    newer.pass_over()
    return older


def read_rope(
    config: JsonFields,
    *,
    head_dim: int,
    default_theta: float = DEFAULT_THETA,
    default: Mapping[str, Any] | None = None,
    rotates_part: bool = False,
) -> RopeParameters:
    """Read a `config.json` with one rotary table.

    Args:
        config: fields of the file.
        head_dim: elements of a head.
        default_theta: base of the family, where the file has none.
        default: the family's table, where the file has none.
        rotates_part: the family reads `partial_rotary_factor`; others rotate whole heads whatever it says.

    Raises:
        CheckpointError: the scaling is none that is supported, or one of its fields is missing or does not fit.
    """
    fields = rope_fields(config, default_theta=default_theta, default=default)
    theta = config.number("rope_theta", default_theta)
    return _read_parameters(fields, config, head_dim=head_dim, default_theta=theta, rotates_part=rotates_part)


def read_full_and_sliding_rope(
    config: JsonFields, *, head_dim: int, full_theta: float, sliding_theta: float, full_head_dim: int | None = None
) -> tuple[RopeParameters, RopeParameters]:
    """Read the tables of full and of sliding-window layers; as `transformers` 4 writes it, only full ones are scaled.

    Args:
        config: fields of the file.
        head_dim: elements of a head.
        full_theta: base of full layers whose table has none.
        sliding_theta: base of sliding layers whose table has none.
        full_head_dim: elements of a head of full layers; None: `head_dim`.

    Raises:
        CheckpointError: as `read_rope`.
    """
    newer, older = config.nested(_NEWER), config.nested(_OLDER)
    full, sliding = newer.nested(_FULL), newer.nested(_SLIDING)
    if not {_FULL, _SLIDING} >= set(newer.names):
        raise config.invalid(_NEWER, f"one table for `{_FULL}` and one for `{_SLIDING}`")
    if older.names:
        full = full.with_fields(older, older.names)
    return (
        _read_parameters(full, config, head_dim=full_head_dim or head_dim, default_theta=full_theta),
        _read_parameters(sliding, config, head_dim=head_dim, default_theta=sliding_theta),
    )


def longest_sequence(config: JsonFields, rope: RopeParameters) -> int:
    """Return the longest sequence of a model with one rotary table, in tokens.

    Files keep the trained length in `max_position_embeddings` where the scaling is `linear` or `dynamic`, and, if the
    scaling was added by hand as model cards say, where it is `yarn`; then the scaling's factor lengthens it.
    """
    most = config.count("max_position_embeddings")
    match rope.scaling:
        case LinearScaling(factor=factor) | DynamicScaling(factor=factor):
            return max(most, int(most * factor))
        case YarnScaling(factor=factor, original_max_position_embeddings=original):
            return max(most, int(original * factor))
        case _:
            return most


def _read_parameters(
    fields: JsonFields, config: JsonFields, *, head_dim: int, default_theta: float, rotates_part: bool = False
) -> RopeParameters:
    kind = "rope_type" if "rope_type" in fields else "type"
    name = fields.text(kind, "default")
    if name == "proportional":  # whose table alone says which part
        rotary_dim = _read_rotary_dim(fields, fields, head_dim, rotates_part=True)
        scaling = ProportionalScaling(num_rotated=rotary_dim // 2, factor=fields.number("factor", 1.0))
        return RopeParameters(theta=fields.number("rope_theta", default_theta), scaling=scaling)
    rotary_dim = _read_rotary_dim(fields, config, head_dim, rotates_part=rotates_part)
    if name == "mrope":  # of texts, all of whose positions are one number
        name = "default"
    if name in ("su", "yarn") and "long_factor" in fields:  # names of LongRoPE in early files
        name = "longrope"
    read = _SCALINGS.get(name)
    if read is None:
        raise fields.invalid(kind, "one of " + ", ".join(f"`{known}`" for known in (*_SCALINGS, "proportional")))
    return RopeParameters(
        theta=fields.number("rope_theta", default_theta),
        scaling=read(fields, config, rotary_dim),
        rotary_dim=None if rotary_dim == head_dim else rotary_dim,
    )


def _read_rotary_dim(fields: JsonFields, config: JsonFields, head_dim: int, *, rotates_part: bool) -> int:
    """Read how many elements of a head are rotated; GGUF files say it of any family, as `rotated_share`."""
    share = "partial_rotary_factor" if rotates_part and "rotated_share" not in config else "rotated_share"
    holder = fields if share in fields else config
    rotary_dim = int(head_dim * holder.number(share, 1.0))
    if not 2 <= rotary_dim <= head_dim or rotary_dim % 2:
        raise holder.invalid(share, f"a share of head_dim = {head_dim} that is an even number")
    return rotary_dim


def _read_linear(fields: JsonFields, config: JsonFields, rotary_dim: int) -> RopeScaling:
    del config, rotary_dim
    return LinearScaling(factor=fields.number("factor"))


def _read_dynamic(fields: JsonFields, config: JsonFields, rotary_dim: int) -> RopeScaling:
    if rotary_dim < 4:
        raise fields.invalid("rope_type", "another one: heads with one frequency have no base to change")
    return DynamicScaling(factor=fields.number("factor"), short_length=config.count("max_position_embeddings"))


def _read_llama3(fields: JsonFields, config: JsonFields, rotary_dim: int) -> RopeScaling:
    del rotary_dim
    scaling = Llama3Scaling(
        factor=fields.number("factor"),
        low_freq_factor=fields.number("low_freq_factor"),
        high_freq_factor=fields.number("high_freq_factor"),
        original_max_position_embeddings=read_original_positions(fields, config),
    )
    if scaling.high_freq_factor <= scaling.low_freq_factor:
        raise fields.invalid("high_freq_factor", f"above `low_freq_factor` = {scaling.low_freq_factor}")
    return scaling


def _read_yarn(fields: JsonFields, config: JsonFields, rotary_dim: int) -> RopeScaling:
    del rotary_dim
    original = read_original_positions(fields, config)
    factor = fields.number("factor", config.count("max_position_embeddings") / original)
    if "attention_factor" in fields:
        attention_factor = fields.number("attention_factor")
    elif fields.value("mscale") and fields.value("mscale_all_dim"):
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
        beta_fast=fields.number("beta_fast", 32.0) if fields.value("beta_fast") else 32.0,
        beta_slow=fields.number("beta_slow", 1.0) if fields.value("beta_slow") else 1.0,
        truncate=fields.flag("truncate", default=True),
    )


def _read_longrope(fields: JsonFields, config: JsonFields, rotary_dim: int) -> RopeScaling:
    original = read_original_positions(fields, config)
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
        short_length=original,
        attention_factor=attention_factor,
    )


def read_original_positions(fields: JsonFields, config: JsonFields) -> int:
    """Read the longest sequence of the first training; early files have it beside the scaling, or nowhere.

    Raises:
        CheckpointError: it is in both places, with other values.
    """
    name = "original_max_position_embeddings"
    beside = config.count(name, config.count("max_position_embeddings"))
    within = fields.count(name, beside)
    if name in config and within != beside:
        raise fields.invalid(name, f"that of `{name}` beside it, which is {beside}, or missing")
    return within


_SCALINGS: dict[str, Callable[[JsonFields, JsonFields, int], RopeScaling]] = {
    "default": lambda *_: NoScaling(),
    "linear": _read_linear,
    "dynamic": _read_dynamic,
    "llama3": _read_llama3,
    "yarn": _read_yarn,
    "longrope": _read_longrope,
}
