"""`SamplingParams`: how one request's tokens are chosen and when it ends. Knows ranges; knows no vocabulary."""

import math

import msgspec

MAX_TEMPERATURE = 100.0
MAX_STOP_STRINGS = 16
MAX_STOP_CHARACTERS = 256
GREEDY_BELOW = 1e-5


class SamplingParams(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How one request's tokens are chosen and when it ends.

    Attributes:
        max_tokens: most tokens to generate; None takes what the context leaves.
        temperature: divides the logits; below 1e-5 is greedy.
        top_p: keep the smallest set of most probable tokens whose probabilities sum to at least this.
        top_k: keep this many most probable tokens; None keeps all. Clamped to the vocabulary.
        min_p: drop tokens less probable than this times the most probable one.
        stop: strings that end the text; neither they nor a part of them are ever emitted.
        stop_token_ids: token ids that end the request with reason `stop`.
        ignore_eos: go on after an end-of-sequence token.
        seed: the same seed gives the same tokens, alone or in any batch; None draws one.

    Raises:
        ValueError: a value is out of range; the message names the field, the value and what is allowed.
    """

    max_tokens: int | None = 128
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int | None = None
    min_p: float = 0.0
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False
    seed: int | None = None

    def __post_init__(self) -> None:
        """Refuse what no engine could honour. Finite before range: NaN compares false with everything."""
        _check("max_tokens", self.max_tokens, self.max_tokens is None or self.max_tokens >= 1, "at least 1")
        for name in ("temperature", "top_p", "min_p"):
            value = getattr(self, name)
            _check(name, value, math.isfinite(value), "a finite number")
        _check(
            "temperature", self.temperature, 0 <= self.temperature <= MAX_TEMPERATURE, f"in [0, {MAX_TEMPERATURE:g}]"
        )
        _check("top_p", self.top_p, 0 < self.top_p <= 1, "in (0, 1]")
        _check("top_k", self.top_k, self.top_k is None or self.top_k >= 1, "at least 1, or null")
        _check("min_p", self.min_p, 0 <= self.min_p <= 1, "in [0, 1]")
        _check("stop", len(self.stop), len(self.stop) <= MAX_STOP_STRINGS, f"at most {MAX_STOP_STRINGS} strings")
        for string in self.stop:
            allowed = f"of 1 to {MAX_STOP_CHARACTERS} characters"
            _check("stop", f"{string[:40]!r}", 1 <= len(string) <= MAX_STOP_CHARACTERS, allowed)
        in_range = self.seed is None or -(2**63) <= self.seed < 2**63
        _check("seed", self.seed, in_range, "a signed 64-bit integer, or null")

    @property
    def is_greedy(self) -> bool:
        """Whether the most probable token is always taken."""
        return self.temperature < GREEDY_BELOW


def _check(name: str, value: object, holds: bool, allowed: str) -> None:  # noqa: FBT001 - a private one-line assertion
    if not holds:
        raise ValueError(f"`{name}` is {value}; it must be {allowed}.")
