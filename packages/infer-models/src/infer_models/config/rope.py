"""`RopeParameters`: rotary frequencies and their scalings for contexts longer than a model was first trained on."""

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from torch import Tensor


class RopeScaling(Protocol):
    """How frequencies change, and what cosines and sines are multiplied by."""

    @property
    def attention_factor(self) -> float:
        """What cosines and sines are multiplied by; 1 leaves them."""

    def frequencies(self, periods: "Tensor", *, theta: float, max_positions: int) -> "Tensor":
        """Return the frequencies, fp32 [rotary_dim / 2], in radians per position.

        Args:
            periods: fp32 [rotary_dim / 2], `theta**(2 i / rotary_dim)` positions per radian.
            theta: base of the series.
            max_positions: the longest sequence that will be computed, in tokens.
        """


@dataclass(frozen=True, slots=True, kw_only=True)
class NoScaling:
    """The frequencies as they are."""

    @property
    def attention_factor(self) -> float:
        """Always 1."""
        return 1.0

    def frequencies(self, periods: "Tensor", *, theta: float, max_positions: int) -> "Tensor":
        """Return the frequencies; see `RopeScaling`."""
        del theta, max_positions
        return 1.0 / periods


@dataclass(frozen=True, slots=True, kw_only=True)
class LinearScaling:
    """Positions squeezed: every frequency is divided by `factor`."""

    factor: float

    @property
    def attention_factor(self) -> float:
        """Always 1."""
        return 1.0

    def frequencies(self, periods: "Tensor", *, theta: float, max_positions: int) -> "Tensor":
        """Return the frequencies; see `RopeScaling`."""
        del theta, max_positions
        return 1.0 / periods / self.factor


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

    @property
    def attention_factor(self) -> float:
        """Always 1."""
        return 1.0

    def frequencies(self, periods: "Tensor", *, theta: float, max_positions: int) -> "Tensor":
        """Return the frequencies; see `RopeScaling`."""
        del theta, max_positions
        inv_freq = 1.0 / periods
        turns = self.original_max_position_embeddings / (2 * math.pi / inv_freq)
        kept = ((turns - self.low_freq_factor) / (self.high_freq_factor - self.low_freq_factor)).clamp(0, 1)
        return (1 - kept) * inv_freq / self.factor + kept * inv_freq


@dataclass(frozen=True, slots=True, kw_only=True)
class YarnScaling:
    """YaRN (Peng et al., 2023): fast frequencies kept, slow ones divided by `factor`, a ramp between them.

    The ramp runs over the indices of frequencies: from where a frequency turns `beta_fast` times within
    `original_max_position_embeddings` positions to where it turns `beta_slow` times, in whole numbers if `truncate`.
    """

    factor: float
    original_max_position_embeddings: int
    attention_factor: float
    beta_fast: float
    beta_slow: float
    truncate: bool

    def frequencies(self, periods: "Tensor", *, theta: float, max_positions: int) -> "Tensor":
        """Return the frequencies; see `RopeScaling`."""
        del max_positions
        rotary_dim = 2 * len(periods)
        first = self._index_of(self.beta_fast, theta=theta, rotary_dim=rotary_dim)
        last = self._index_of(self.beta_slow, theta=theta, rotary_dim=rotary_dim)
        if self.truncate:
            first, last = math.floor(first), math.ceil(last)
        first, last = max(first, 0), min(last, rotary_dim - 1)
        width = (last - first) or 0.001  # of a ramp of one step
        slow = ((periods.new_tensor(range(len(periods))) - first) / width).clamp(0, 1)
        return slow / (self.factor * periods) + (1 - slow) / periods

    def _index_of(self, turns: float, *, theta: float, rotary_dim: int) -> float:
        """Return the index, not a whole one, of the frequency that turns so often within the original positions."""
        positions_per_radian = self.original_max_position_embeddings / (turns * 2 * math.pi)
        return rotary_dim * math.log(positions_per_radian) / (2 * math.log(theta))


@dataclass(frozen=True, slots=True, kw_only=True)
class LongRopeScaling:
    """LongRoPE (Ding et al., 2024): a factor for each frequency, others for long sequences than for short ones.

    Which of them is chosen once for all sequences, by the longest that will be computed: keys that are cached with one
    choice are of no use with the other.
    """

    short_factors: tuple[float, ...]
    long_factors: tuple[float, ...]
    original_max_position_embeddings: int
    attention_factor: float

    def frequencies(self, periods: "Tensor", *, theta: float, max_positions: int) -> "Tensor":
        """Return the frequencies; see `RopeScaling`."""
        del theta
        is_long = max_positions > self.original_max_position_embeddings
        return 1.0 / (periods.new_tensor(self.long_factors if is_long else self.short_factors) * periods)


@dataclass(frozen=True, slots=True, kw_only=True)
class RopeParameters:
    """One rotary table's parameters.

    Attributes:
        theta: base of the geometric series of frequencies.
        scaling: what is done to the frequencies.
        rotary_dim: elements of a head that are rotated, its first ones; None: all.
    """

    theta: float
    scaling: RopeScaling
    rotary_dim: int | None = None
