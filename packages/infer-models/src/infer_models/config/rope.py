"""`RopeParameters`: rotary frequencies and their scalings, as `config.json` gives them."""

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from torch import Tensor

    from infer_models.config.json_fields import JsonFields


class RopeScaling(Protocol):
    """How the frequencies change for contexts longer than the model was first trained on."""

    def scale(self, inv_freq: "Tensor") -> "Tensor":
        """Return the changed frequencies; `inv_freq` is fp32 [head_dim / 2], in radians per position."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NoScaling:
    """The frequencies as they are."""

    def scale(self, inv_freq: "Tensor") -> "Tensor":
        """Return `inv_freq` itself."""
        return inv_freq


@dataclass(frozen=True, slots=True, kw_only=True)
class LinearScaling:
    """Positions squeezed: every frequency is divided by `factor`."""

    factor: float

    def scale(self, inv_freq: "Tensor") -> "Tensor":
        """Return the changed frequencies; `inv_freq` is fp32 [head_dim / 2]."""
        return inv_freq / self.factor


@dataclass(frozen=True, slots=True, kw_only=True)
class Llama3Scaling:
    """Llama 3.1's scaling: slow frequencies divided by `factor`, fast ones kept, those between blended.

    A frequency is fast where it turns at least `high_freq_factor` times within `original_max_position_embeddings`
    positions, slow where it turns at most `low_freq_factor` times.
    """

    factor: float
    low_freq_factor: float
    high_freq_factor: float
    original_max_position_embeddings: int

    def scale(self, inv_freq: "Tensor") -> "Tensor":
        """Return the changed frequencies; `inv_freq` is fp32 [head_dim / 2]."""
        turns = self.original_max_position_embeddings / (2 * math.pi / inv_freq)
        kept = ((turns - self.low_freq_factor) / (self.high_freq_factor - self.low_freq_factor)).clamp(0, 1)
        return (1 - kept) * inv_freq / self.factor + kept * inv_freq


@dataclass(frozen=True, slots=True, kw_only=True)
class RopeParameters:
    """One rotary table's parameters.

    Attributes:
        theta: base of the geometric series of frequencies.
        scaling: what is done to the frequencies.
    """

    theta: float
    scaling: RopeScaling


def read_rope(config: "JsonFields", *, default_theta: float = 10000.0) -> RopeParameters:
    """Read a `config.json` with one rotary table: `rope_parameters`, or else `rope_theta` and `rope_scaling`.

    Raises:
        CheckpointError: the scaling is none that is supported, or one of its fields is missing.
    """
    if "rope_parameters" in config:
        return _read_parameters(config.nested("rope_parameters"), default_theta=default_theta)
    return _read_parameters(config.nested("rope_scaling"), default_theta=config.number("rope_theta", default_theta))


def read_full_and_sliding_rope(config: "JsonFields") -> tuple[RopeParameters, RopeParameters]:
    """Read the tables of full and of sliding-window layers: both in `rope_parameters`, or `rope_local_base_freq` too.

    Raises:
        CheckpointError: as `read_rope`.
    """
    full_theta, sliding_theta = 1_000_000.0, 10_000.0
    if "rope_parameters" in config:
        both = config.nested("rope_parameters")
        return (
            _read_parameters(both.nested("full_attention"), default_theta=full_theta),
            _read_parameters(both.nested("sliding_attention"), default_theta=sliding_theta),
        )
    sliding = RopeParameters(theta=config.number("rope_local_base_freq", sliding_theta), scaling=NoScaling())
    return read_rope(config, default_theta=full_theta), sliding


def _read_parameters(fields: "JsonFields", *, default_theta: float) -> RopeParameters:
    theta = fields.number("rope_theta", default_theta)
    if fields.number("partial_rotary_factor", 1.0) != 1.0:
        raise fields.invalid("partial_rotary_factor", "1: partly rotated heads are not supported")
    return RopeParameters(theta=theta, scaling=_read_scaling(fields))


def _read_scaling(fields: "JsonFields") -> RopeScaling:
    kind = "rope_type" if "rope_type" in fields else "type"
    match fields.text(kind, "default"):
        case "default":
            return NoScaling()
        case "linear":
            return LinearScaling(factor=fields.number("factor"))
        case "llama3":
            scaling = Llama3Scaling(
                factor=fields.number("factor"),
                low_freq_factor=fields.number("low_freq_factor"),
                high_freq_factor=fields.number("high_freq_factor"),
                original_max_position_embeddings=fields.count("original_max_position_embeddings"),
            )
            if scaling.high_freq_factor <= scaling.low_freq_factor:
                raise fields.invalid("high_freq_factor", f"above `low_freq_factor` = {scaling.low_freq_factor}")
            return scaling
        case _:
            raise fields.invalid(kind, "`default`, `linear` or `llama3`: other RoPE scalings are not supported")
