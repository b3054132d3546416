"""`SamplingParams`: how the tokens of a request are chosen, and when it ends."""

from collections.abc import Sequence

import msgspec

from infer_engine.protocol.structured_outputs import StructuredOutputs
from infer_engine.protocol.values import Check, number, optional, refusal, switch, whole_number

MAX_TEMPERATURE = 100.0
MAX_STOP_STRINGS = 16
MAX_STOP_CHARACTERS = 256
MAX_STOP_TOKEN_IDS = 1024
MAX_REPETITION_PENALTY = 10.0
MAX_PENALTY = 2.0
MAX_LOGIT_BIAS_ENTRIES = 1024
MAX_LOGIT_BIAS = 100.0
MAX_LOGPROBS = 20
MAX_CHOICES = 16
MAX_TOP_K = 2**31 - 1
GREEDY_BELOW = 1e-5


class SamplingParams(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How the tokens of a request are chosen, and when it ends.

    Attributes:
        max_tokens: most tokens to generate; None allows as many as the context has left.
        temperature: divides the logits; below 1e-5 is greedy.
        top_p: keep the smallest set of most probable tokens whose probabilities sum to at least this.
        top_k: keep this many most probable tokens; None keeps all. Clamped to the vocabulary.
        min_p: drop tokens less probable than this times the most probable one.
        repetition_penalty: divides the positive logits of tokens of the prompt or the output, multiplies the negative.
        presence_penalty: is subtracted from the logits of tokens of the output.
        frequency_penalty: is subtracted from the logit of a token once for each of its occurrences in the output.
        logit_bias: by token id, added to the logit.
        min_tokens: generate at least this many tokens; before that no token that ends the request is chosen.
        stop: one string or several that end the text; no part of them is ever returned.
        stop_token_ids: token ids that end the request with reason `stop`.
        ignore_eos: do not end at an end-of-sequence token; it is an ordinary token, also for `min_tokens`.
        seed: the same seed gives the same tokens, alone or in any batch; None draws one.
        logprobs: return the log-probability of each generated token and of this many most probable ones; 0 returns the
            generated token's alone, None nothing. They are taken before penalties, biases, temperature and filters.
        prompt_logprobs: the same for each token of the prompt but the first. Such a request reuses no cached prefix.
        n: how many continuations of the prompt to generate.
        structured_outputs: what the text must look like; None allows any. The text is complete, or ended by
            `max_tokens`, `stop` or `stop_token_ids`. Where nothing may follow, the request ends, also before
            `min_tokens` and with `ignore_eos`.

    Raises:
        ValueError: a value is of the wrong type or out of range; the message names the field, the value and what is
            allowed.
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
    stop: tuple[str, ...] | str = ()
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False
    seed: int | None = None
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    n: int = 1
    structured_outputs: StructuredOutputs | None = None

    def __post_init__(self) -> None:
        """Check all values. `stop` may be one string without a list."""
        stop = (self.stop,) if isinstance(self.stop, str) else self.stop
        for name, values in (("stop", stop), ("stop_token_ids", self.stop_token_ids)):
            if not isinstance(values, tuple | list):
                raise refusal(name, values, "a list")
            msgspec.structs.force_setattr(self, name, tuple(values))
        for name, check in _CHECKS.items():
            check(name, getattr(self, name))
        if self.top_k is not None:  # no vocabulary is larger, and a message holds numbers of at most 64 bits
            msgspec.structs.force_setattr(self, "top_k", min(self.top_k, MAX_TOP_K))
        if self.max_tokens is not None and self.min_tokens > self.max_tokens:
            raise refusal("min_tokens", self.min_tokens, f"at most `max_tokens`, which is {self.max_tokens}")
        if not isinstance(self.structured_outputs, StructuredOutputs | None):
            raise refusal("structured_outputs", self.structured_outputs, "`StructuredOutputs` or None")
        _check_bias(self.logit_bias)
        _check_stops(self.stop)
        _check_stop_ids(self.stop_token_ids)

    @property
    def is_greedy(self) -> bool:
        """Whether the most probable token is always taken."""
        return self.temperature < GREEDY_BELOW


def _check_bias(logit_bias: object) -> None:
    if not isinstance(logit_bias, dict):
        raise refusal("logit_bias", logit_bias, "a mapping from token ids to numbers")
    if len(logit_bias) > MAX_LOGIT_BIAS_ENTRIES:
        raise ValueError(f"`logit_bias` has {len(logit_bias)} entries; it must have at most {MAX_LOGIT_BIAS_ENTRIES}.")
    for token_id, bias in logit_bias.items():
        _TOKEN_ID("logit_bias", token_id)
        _BIAS("logit_bias", bias)


def _check_stops(stop: Sequence[object]) -> None:
    if len(stop) > MAX_STOP_STRINGS:
        raise ValueError(f"`stop` has {len(stop)} strings; it must have at most {MAX_STOP_STRINGS}.")
    for string in stop:
        if not isinstance(string, str) or not 1 <= len(string) <= MAX_STOP_CHARACTERS:
            shown = string[:40] if isinstance(string, str) else string
            raise refusal("stop", shown, f"strings of 1 to {MAX_STOP_CHARACTERS} characters")


def _check_stop_ids(stop_token_ids: Sequence[object]) -> None:
    if len(stop_token_ids) > MAX_STOP_TOKEN_IDS:
        raise ValueError(f"`stop_token_ids` has {len(stop_token_ids)} ids; it must have at most {MAX_STOP_TOKEN_IDS}.")
    for token_id in stop_token_ids:
        _TOKEN_ID("stop_token_ids", token_id)


def _between(low: float, high: float) -> Check:
    """Return the check for a finite number in [low, high]; NaN is outside, as it compares false."""
    return number(f"a number in [{low:g}, {high:g}]", lambda value: low <= value <= high)


_TOKEN_ID = whole_number("token ids of at least 0", lambda value: value >= 0)
_BIAS = _between(-MAX_LOGIT_BIAS, MAX_LOGIT_BIAS)
_NUM_LOGPROBS = whole_number(f"a whole number in [0, {MAX_LOGPROBS}]", lambda value: 0 <= value <= MAX_LOGPROBS)
_AT_LEAST_1 = whole_number("a whole number of at least 1", lambda value: value >= 1)

_CHECKS = {
    "max_tokens": optional(_AT_LEAST_1),
    "temperature": _between(0, MAX_TEMPERATURE),
    "top_p": number("a number in (0, 1]", lambda value: 0 < value <= 1),
    "top_k": optional(_AT_LEAST_1),
    "min_p": _between(0, 1),
    "repetition_penalty": number(
        f"a number in (0, {MAX_REPETITION_PENALTY:g}]", lambda value: 0 < value <= MAX_REPETITION_PENALTY
    ),
    "presence_penalty": _between(-MAX_PENALTY, MAX_PENALTY),
    "frequency_penalty": _between(-MAX_PENALTY, MAX_PENALTY),
    "min_tokens": whole_number("a whole number of at least 0", lambda value: value >= 0),
    "ignore_eos": switch(),
    "seed": optional(whole_number("a signed 64-bit integer", lambda value: -(2**63) <= value < 2**63)),
    "logprobs": optional(_NUM_LOGPROBS),
    "prompt_logprobs": optional(_NUM_LOGPROBS),
    "n": whole_number(f"a whole number in [1, {MAX_CHOICES}]", lambda value: 1 <= value <= MAX_CHOICES),
}
