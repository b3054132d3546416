"""`RopeParameters`: rotary frequencies and their scalings for contexts longer than a model was first trained on."""

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Protocol

if TYPE_CHECKING:
    from torch import Tensor


class RopeScaling(Protocol):
    """A change of frequencies, and a factor of cosines and sines."""

    @property
    def attention_factor(self) -> float:
        """Factor of cosines and sines; 1 leaves them."""

    @property
    def short_length(self) -> int | None:
        """The longest sequence, in tokens, whose frequencies are not those of longer ones; None: none is."""

    def frequencies(self, periods: "Tensor", *, theta: float, is_long: bool) -> "Tensor":
        """Return the frequencies, fp32 [rotary_dim / 2], in radians per position.

        Args:
            periods: fp32 [rotary_dim / 2], `theta**(2 i / rotary_dim)` positions per radian.
            theta: base of the series.
            is_long: the frequencies are for sequences longer than `short_length`.
        """


@dataclass(frozen=True, slots=True, kw_only=True)
class NoScaling:
    """The frequencies as they are."""

    short_length: ClassVar[None] = None

    @property
    def attention_factor(self) -> float:
        """Always 1."""
        return 1.0

    def frequencies(self, periods: "Tensor", *, theta: float, is_long: bool) -> "Tensor":
        """Return the frequencies; see `RopeScaling`."""
        del theta, is_long
        return 1.0 / periods


@dataclass(frozen=True, slots=True, kw_only=True)
class ProportionalScaling:
    """The first frequencies of a head, those of its fastest pairs, divided by `factor`; the others are 0.

    Pairs are those of the whole head, and so are the frequencies: what is not rotated ends each half.
    """

    num_rotated: int
    factor: float
    short_length: ClassVar[None] = None

    @property
    def attention_factor(self) -> float:
        """Always 1."""
        return 1.0

    def frequencies(self, periods: "Tensor", *, theta: float, is_long: bool) -> "Tensor":
        """Return the frequencies; see `RopeScaling`."""
        del theta, is_long
        rotates = periods.new_tensor(range(len(periods))) < self.num_rotated
        return 1.0 / periods / self.factor * rotates


@dataclass(frozen=True, slots=True, kw_only=True)
class LinearScaling:
    """Positions squeezed: every frequency is divided by `factor`."""

    factor: float
    short_length: ClassVar[None] = None

    @property
    def attention_factor(self) -> float:
        """Always 1."""
        return 1.0

    def frequencies(self, periods: "Tensor", *, theta: float, is_long: bool) -> "Tensor":
        """Return the frequencies; see `RopeScaling`."""
        del theta, is_long
        return 1.0 / periods / self.factor


@dataclass(frozen=True, slots=True, kw_only=True)
class DynamicScaling:
    """Dynamic NTK: sequences beyond the trained length have a larger base, others the frequencies as they are.

    The base of long ones is that of a sequence `factor` times as long, as keys in the cache cannot follow a base that
    grows with every token: u/emozilla, "Dynamically Scaled RoPE", 2023.
    """

    factor: float
    short_length: int

    @property
    def attention_factor(self) -> float:
        """Always 1."""
        return 1.0

    def frequencies(self, periods: "Tensor", *, theta: float, is_long: bool) -> "Tensor":
        """Return the frequencies; see `RopeScaling`."""
        if not is_long:
            return 1.0 / periods
        rotary_dim = 2 * len(periods)
        stretch = self.factor * self.factor - (self.factor - 1)
        base = theta * stretch ** (rotary_dim / (rotary_dim - 2))
        longer: Tensor = base ** (periods.new_tensor(range(0, rotary_dim, 2)) / rotary_dim)
        return 1.0 / longer


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
    short_length: ClassVar[None] = None

    @property
    def attention_factor(self) -> float:
        """Always 1."""
        return 1.0

    def frequencies(self, periods: "Tensor", *, theta: float, is_long: bool) -> "Tensor":
        """Return the frequencies; see `RopeScaling`."""
        del theta, is_long
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
    short_length: ClassVar[None] = None

    def frequencies(self, periods: "Tensor", *, theta: float, is_long: bool) -> "Tensor":
        """Return the frequencies; see `RopeScaling`."""
        del is_long
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
    """LongRoPE (Ding et al., 2024): a factor for each frequency, others for long sequences than for short ones."""

    short_factors: tuple[float, ...]
    long_factors: tuple[float, ...]
    short_length: int
    attention_factor: float

    def frequencies(self, periods: "Tensor", *, theta: float, is_long: bool) -> "Tensor":
        """Return the frequencies; see `RopeScaling`."""
        del theta
        return 1.0 / (periods.new_tensor(self.long_factors if is_long else self.short_factors) * periods)


@dataclass(frozen=True, slots=True, kw_only=True)
class RopeParameters:
    """One rotary table's parameters.

    Attributes:
        theta: base of the geometric series of frequencies.
        scaling: change of the frequencies.
        rotary_dim: elements of a head that are rotated, its first ones; None: all.
    """

    theta: float
    scaling: RopeScaling
    rotary_dim: int | None = None
