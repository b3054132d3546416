"""`PrefillShare`: how many prompt tokens a step with decodes computes, by what the steps before have taken.

    seconds of a step = base * BASE_ROWS + decode * decodes + prompt * prompt tokens

The three rates differ by machine and model. Where weights take longer to read than a few rows to multiply, the base is
most of a step, and prompt tokens are nearly free; where arithmetic is slow, a prompt token costs as much as a decode. A
step shows only their sum, so a Kalman filter estimates them together. It assumes that

- steps are noisy, and one may take many times as long as it should: no step moves the estimates by more than so much;
- the whole machine becomes slower or faster at once, when others use it: all three are multiplied alike then, which
  leaves the share as it is, because it depends on their ratios alone;
- the ratios change slowly, with the lengths of sequences.
"""

from math import sqrt

FLOOR = 16
"""Prompt tokens that a step with decodes computes at least, whatever they cost: prompts must end, too."""
BASE_ROWS = 32
"""Rows that the base is worth before the first step: then 48 prompt tokens take a step of 16 decodes twice as long."""
_NOISE, _LOAD, _DRIFT = 0.15, 0.05, 0.02
"""Relative standard deviations: of a step's seconds; from step to step, of all rates at once, and of each by itself."""
_OUTLIER = 3.0
"""Standard deviations from what was expected beyond which a step counts as one at that distance."""
_MOST_RATIO = 1000
"""How many times less than that of the whole step each rate may be: noise must make none negative."""
_TICK_S = 1e-9
"""Seconds below which a clock has not moved."""


class PrefillShare:
    """The prompt tokens with which a step takes at most `max_slowdown` times as long as its decodes alone.

    Only the ratios of the seconds that it observes matter: a machine twice as slow has the same share.
    """

    __slots__ = ("_covariance", "_max_slowdown", "_most", "_rates")

    def __init__(self, *, max_slowdown: float, most: int) -> None:
        """Begin with equal rates. No share is larger than `most` tokens, not even `FLOOR`."""
        self._max_slowdown = max_slowdown
        self._most = most
        self._rates = 1.0, 1.0, 1.0  # base, decode, prompt
        self._covariance: tuple[float, ...] = ()  # of base and base, base and decode, ...; none before the first step

    def num_tokens(self, num_decodes: int) -> int:
        """Return the most prompt tokens of a step with `num_decodes` decodes."""
        base, decode, prompt = self._rates
        extra_s = (self._max_slowdown - 1) * (base * BASE_ROWS + decode * num_decodes)
        share = self._most if prompt * self._most <= extra_s else round(extra_s / prompt)
        return min(max(share, FLOOR), self._most)

    def observe(self, num_decodes: int, num_prompt_tokens: int, seconds: float) -> None:
        """Learn from a step of `num_decodes` rows of decodes, drafts included, and `num_prompt_tokens` of prompts.

        A step that took no time, on a clock that stands still, says nothing.
        """
        if seconds < _TICK_S:
            return
        x, y, z = BASE_ROWS, num_decodes, num_prompt_tokens
        if not self._covariance:
            rate = seconds / (x + y + z)
            self._rates, self._covariance = (rate, rate, rate), (rate**2, 0.0, 0.0, rate**2, 0.0, rate**2)
            return
        base, decode, prompt = self._rates
        expected_s = base * x + decode * y + prompt * z
        rate = expected_s / (x + y + z)
        bb, bd, bp, dd, dp, pp = self._predict(rate)
        # The covariance of each rate with the step's seconds, and the variance of the seconds.
        b, d, p = bb * x + bd * y + bp * z, bd * x + dd * y + dp * z, bp * x + dp * y + pp * z
        variance = b * x + d * y + p * z + (_NOISE * expected_s) ** 2
        most_s = _OUTLIER * sqrt(variance)
        gain = min(max(seconds - expected_s, -most_s), most_s) / variance
        least = rate / _MOST_RATIO
        self._rates = max(least, base + b * gain), max(least, decode + d * gain), max(least, prompt + p * gain)
        self._covariance = (
            *(bb - b * b / variance, bd - b * d / variance, bp - b * p / variance),
            *(dd - d * d / variance, dp - d * p / variance, pp - p * p / variance),
        )

    def _predict(self, rate: float) -> tuple[float, ...]:
        """Return the covariance a step later; no variance is more than the square of `rate`, the whole step's."""
        base, decode, prompt = self._rates
        bb, bd, bp, dd, dp, pp = self._covariance
        load, drift, most = _LOAD**2, (_DRIFT * rate) ** 2, rate**2
        bb, dd, pp = bb + load * base**2 + drift, dd + load * decode**2 + drift, pp + load * prompt**2 + drift
        b, d, p = sqrt(min(1.0, most / bb)), sqrt(min(1.0, most / dd)), sqrt(min(1.0, most / pp))
        bd, bp, dp = bd + load * base * decode, bp + load * base * prompt, dp + load * decode * prompt
        return bb * b * b, bd * b * d, bp * b * p, dd * d * d, dp * d * p, pp * p * p
