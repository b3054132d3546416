"""`SamplingParams`: how one request's tokens are chosen and when it ends. Knows ranges; knows no vocabulary."""

import math

import msgspec

MAX_TEMPERATURE = 100.0
MAX_STOP_STRINGS = 16
MAX_STOP_CHARACTERS = 256
MAX_REPETITION_PENALTY = 10.0
MAX_PENALTY = 2.0
MAX_LOGIT_BIAS_ENTRIES = 1024
MAX_LOGIT_BIAS = 100.0
MAX_LOGPROBS = 20
MAX_CHOICES = 16
GREEDY_BELOW = 1e-5


class SamplingParams(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How one request's tokens are chosen and when it ends.

    Attributes:
        max_tokens: most tokens to generate; None takes what the context leaves.
        temperature: divides the logits; below 1e-5 is greedy.
        top_p: keep the smallest set of most probable tokens whose probabilities sum to at least this.
        top_k: keep this many most probable tokens; None keeps all. Clamped to the vocabulary.
        min_p: drop tokens less probable than this times the most probable one.
        repetition_penalty: divides the positive logits of tokens of the prompt or the output, multiplies the others.
        presence_penalty: is taken from the logits of tokens of the output.
        frequency_penalty: is taken from the logit of a token once for each time that the output has it.
        logit_bias: by token id, added to the logit.
        min_tokens: generate at least this many tokens: until then no token that would end the request is chosen.
        stop: strings that end the text; neither they nor a part of them are ever emitted.
        stop_token_ids: token ids that end the request with reason `stop`.
        ignore_eos: go on after an end-of-sequence token, which is a token like any other then, to `min_tokens` too.
        seed: the same seed gives the same tokens, alone or in any batch; None draws one.
        logprobs: list the log-probability of each generated token and of this many most probable ones; 0 lists the
            generated token alone, None nothing. Penalties, biases, temperature and filters do not count.
        n: how many continuations of the prompt to generate.

    Raises:
        ValueError: a value is out of range; the message names the field, the value and what is allowed.
    """

    max_tokens: int | None = 128
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int | None = None
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: dict[int, float] = {}
    min_tokens: int = 0
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False
    seed: int | None = None
    logprobs: int | None = None
    n: int = 1

    def __post_init__(self) -> None:
        """Refuse what no engine could honour."""
        self._check_numbers()
        self._check_lengths()
        self._check_ends()
        in_range = self.seed is None or -(2**63) <= self.seed < 2**63
        _check("seed", self.seed, in_range, "a signed 64-bit integer, or null")
        listed = self.logprobs is None or 0 <= self.logprobs <= MAX_LOGPROBS
        _check("logprobs", self.logprobs, listed, f"in [0, {MAX_LOGPROBS}], or null")
        _check("n", self.n, 1 <= self.n <= MAX_CHOICES, f"in [1, {MAX_CHOICES}]")

    def _check_numbers(self) -> None:
        """Finite before range: NaN compares false with everything."""
        for name, value, in_range, allowed in (
            ("temperature", self.temperature, 0 <= self.temperature <= MAX_TEMPERATURE, f"in [0, {MAX_TEMPERATURE:g}]"),
            ("top_p", self.top_p, 0 < self.top_p <= 1, "in (0, 1]"),
            ("min_p", self.min_p, 0 <= self.min_p <= 1, "in [0, 1]"),
            (
                "repetition_penalty",
                self.repetition_penalty,
                0 < self.repetition_penalty <= MAX_REPETITION_PENALTY,
                f"in (0, {MAX_REPETITION_PENALTY:g}]",
            ),
            _penalty("presence_penalty", self.presence_penalty),
            _penalty("frequency_penalty", self.frequency_penalty),
        ):
            _check(name, value, math.isfinite(value), "a finite number")
            _check(name, value, in_range, allowed)
        _check("top_k", self.top_k, self.top_k is None or self.top_k >= 1, "at least 1, or null")
        _check_bias(self.logit_bias)

    def _check_lengths(self) -> None:
        limit = self.max_tokens
        _check("max_tokens", limit, limit is None or limit >= 1, "at least 1")
        _check("min_tokens", self.min_tokens, self.min_tokens >= 0, "at least 0")
        reachable = limit is None or self.min_tokens <= limit
        _check("min_tokens", self.min_tokens, reachable, f"at most `max_tokens`, which is {limit}")

    def _check_ends(self) -> None:
        _check("stop", len(self.stop), len(self.stop) <= MAX_STOP_STRINGS, f"at most {MAX_STOP_STRINGS} strings")
        for string in self.stop:
            allowed = f"of 1 to {MAX_STOP_CHARACTERS} characters"
            _check("stop", f"{string[:40]!r}", 1 <= len(string) <= MAX_STOP_CHARACTERS, allowed)
        for token_id in self.stop_token_ids:
            _check("stop_token_ids", token_id, token_id >= 0, "token ids of at least 0")

    @property
    def is_greedy(self) -> bool:
        """Whether the most probable token is always taken."""
        return self.temperature < GREEDY_BELOW


def _check(name: str, value: object, holds: bool, allowed: str) -> None:  # noqa: FBT001 - a private one-line assertion
    if not holds:
        raise ValueError(f"`{name}` is {value}; it must be {allowed}.")


def _check_bias(logit_bias: dict[int, float]) -> None:
    entries = len(logit_bias)
    _check("logit_bias", f"{entries} entries", entries <= MAX_LOGIT_BIAS_ENTRIES, f"at most {MAX_LOGIT_BIAS_ENTRIES}")
    for token_id, bias in logit_bias.items():
        entry = f"{{{token_id}: {bias}}}"
        _check("logit_bias", entry, token_id >= 0, "of token ids of at least 0")
        _check("logit_bias", entry, math.isfinite(bias), "of finite numbers")
        in_range = -MAX_LOGIT_BIAS <= bias <= MAX_LOGIT_BIAS
        _check("logit_bias", entry, in_range, f"in [-{MAX_LOGIT_BIAS:g}, {MAX_LOGIT_BIAS:g}]")


def _penalty(name: str, value: float) -> tuple[str, float, bool, str]:
    return name, value, -MAX_PENALTY <= value <= MAX_PENALTY, f"in [-{MAX_PENALTY:g}, {MAX_PENALTY:g}]"
