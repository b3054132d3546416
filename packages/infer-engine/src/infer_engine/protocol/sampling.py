"""`SamplingParams`: how the tokens of a request are chosen, and when it ends."""

from collections.abc import Sequence

import msgspec

from infer_engine.protocol.structured_outputs import StructuredOutputs
from infer_engine.protocol.values import Check, number, optional, refusal, switch, whole_number

MAX_TEMPERATURE = 100.0
MAX_STOP_STRINGS = 64
MAX_STOP_CHARACTERS = 1024
MAX_STOP_TOKEN_IDS = 1024
MAX_ALLOWED_TOKEN_IDS = 1024
MAX_BAD_WORDS = 1024
MAX_BAD_WORD_CHARACTERS = 256
MAX_REPETITION_PENALTY = 10.0
MAX_PENALTY = 2.0
MAX_LOGIT_BIAS_ENTRIES = 1024
MAX_LOGIT_BIAS = 100.0
MAX_LOGPROBS = 20
MAX_CHOICES = 128
MAX_TOP_K = 2**31 - 1
GREEDY_BELOW = 1e-5


class SamplingParams(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How the tokens of a request are chosen, and when it ends.

    What other engines write for "none" and "all" is taken, and kept in one form: `max_tokens` -1, `top_k` 0 and -1,
    `seed` -1, a `top_p` of 0, None for lists, empty stop strings.

    Attributes:
        max_tokens: most tokens to generate; None, or -1, allows as many as the context has left. 0 only reads the
            prompt, for `prompt_logprobs`.
        temperature: divides the logits; below 1e-5 is greedy.
        top_p: keep the smallest set of most probable tokens whose probabilities sum to at least this; 0 is greedy.
        top_k: keep this many most probable tokens; None, 0 or -1 keeps all. Clamped to the vocabulary.
        min_p: drop tokens less probable than this times the most probable one.
        repetition_penalty: divides the positive logits of tokens of the prompt or the output, multiplies the negative.
        presence_penalty: is subtracted from the logits of tokens of the output.
        frequency_penalty: is subtracted from the logit of a token once for each of its occurrences in the output.
        logit_bias: by token id, added to the logit.
        allowed_token_ids: only these tokens are chosen, an end of text too only if it is among them; None: all. Not
            beside `structured_outputs`.
        bad_words: texts that are not generated as the tokenizer writes them, with or without a blank before: the last
            token of one is forbidden where the others come before it.
        min_tokens: generate at least this many tokens; before that no token that ends the request is chosen.
        stop: one string or several that end the text; no part of them is ever returned. One that is, or has in it, the
            text of a special token ends the text at that token, though special tokens have no text.
        include_stop_str_in_output: return the stop string, or the text of the token that ended the request, too.
        stop_token_ids: token ids that end the request with reason `stop`.
        skip_special_tokens: special tokens have no text.
        ignore_eos: do not end at an end-of-sequence token; it is an ordinary token, also for `min_tokens`.
        seed: the same seed gives the same tokens, alone or in any batch; None, or -1, draws one.
        logprobs: return the log-probability of each generated token and of this many most probable ones; 0 returns the
            generated token's alone, None nothing. They are taken before penalties, biases, temperature and filters.
        prompt_logprobs: the same for each token of the prompt but the first. Such a request reuses no cached prefix.
        n: how many continuations of the prompt to generate.
        thinking_token_budget: in a conversation, most tokens of thinking: then its end is forced, and the answer
            follows. -1 is no limit, None what the engine is configured for. Not beside `allowed_token_ids`.
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
    allowed_token_ids: tuple[int, ...] | None = None
    bad_words: tuple[str, ...] | str = ()
    min_tokens: int = 0
    stop: tuple[str, ...] | str = ()
    stop_token_ids: tuple[int, ...] = ()
    include_stop_str_in_output: bool = False
    skip_special_tokens: bool = True
    ignore_eos: bool = False
    seed: int | None = None
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    n: int = 1
    thinking_token_budget: int | None = None
    structured_outputs: StructuredOutputs | None = None

    def __post_init__(self) -> None:
        """Check all values, and bring them into one form. Lists of texts may be one text without a list."""
        for name in ("stop", "bad_words", "stop_token_ids", "allowed_token_ids"):
            values = getattr(self, name)
            if name != "allowed_token_ids" or values is not None:
                msgspec.structs.force_setattr(self, name, _items(name, values))
        for name, check in _CHECKS.items():
            check(name, getattr(self, name))
        _check_count("stop", self.stop, most=MAX_STOP_STRINGS)
        self._normalize()
        if self.max_tokens is not None and self.min_tokens > self.max_tokens:
            raise refusal("min_tokens", self.min_tokens, f"at most `max_tokens`, which is {self.max_tokens}")
        if not isinstance(self.structured_outputs, StructuredOutputs | None):
            raise refusal("structured_outputs", self.structured_outputs, "`StructuredOutputs` or None")
        _check_bias(self.logit_bias)
        _check_texts("stop", self.stop, most_characters=MAX_STOP_CHARACTERS)
        _check_count("bad_words", self.bad_words, most=MAX_BAD_WORDS)
        _check_texts("bad_words", self.bad_words, most_characters=MAX_BAD_WORD_CHARACTERS)
        _check_ids("stop_token_ids", self.stop_token_ids, most=MAX_STOP_TOKEN_IDS)
        if self.allowed_token_ids is not None:
            if not self.allowed_token_ids:
                raise ValueError("`allowed_token_ids` is empty, so no token could be chosen; leave it out.")
            _check_ids("allowed_token_ids", self.allowed_token_ids, most=MAX_ALLOWED_TOKEN_IDS)
            if self.structured_outputs is not None:
                raise ValueError("`allowed_token_ids` cannot be kept beside `structured_outputs`; send one of them.")

    @property
    def is_greedy(self) -> bool:
        """Whether the most probable token is always taken."""
        return self.temperature < GREEDY_BELOW

    def _normalize(self) -> None:
        """Replace what means "none" or "all" in other engines by what does here."""
        changes: dict[str, object] = {}
        if self.max_tokens == -1:
            changes["max_tokens"] = None
        if self.top_k is not None:  # no vocabulary is larger, and a message holds numbers of at most 64 bits
            changes["top_k"] = min(self.top_k, MAX_TOP_K) if self.top_k > 0 else None
        if self.top_p == 0:
            changes |= {"top_p": 1.0, "temperature": 0.0}
        if self.seed == -1:
            changes["seed"] = None
        if "" in self.stop:  # nobody means a text that ends before it begins
            changes["stop"] = tuple(string for string in self.stop if string != "")
        for name, value in changes.items():
            msgspec.structs.force_setattr(self, name, value)


def _items(name: str, values: object) -> tuple[object, ...]:
    """Return a list as a tuple; one text is a list of itself, and None an empty list."""
    if values is None:
        return ()
    if isinstance(values, str) and name in ("stop", "bad_words"):
        return (values,)
    if not isinstance(values, tuple | list):
        raise refusal(name, values, "a list")
    return tuple(values)


def _check_bias(logit_bias: object) -> None:
    if not isinstance(logit_bias, dict):
        raise refusal("logit_bias", logit_bias, "a mapping from token ids to numbers")
    if len(logit_bias) > MAX_LOGIT_BIAS_ENTRIES:
        raise ValueError(f"`logit_bias` has {len(logit_bias)} entries; it must have at most {MAX_LOGIT_BIAS_ENTRIES}.")
    for token_id, bias in logit_bias.items():
        _TOKEN_ID("logit_bias", token_id)
        _BIAS("logit_bias", bias)


def _check_count(name: str, texts: Sequence[object], *, most: int) -> None:
    if len(texts) > most:
        raise ValueError(f"`{name}` has {len(texts)} strings; it must have at most {most}.")


def _check_texts(name: str, texts: Sequence[object], *, most_characters: int) -> None:
    for text in texts:
        if not isinstance(text, str) or not 1 <= len(text) <= most_characters:
            shown = text[:40] if isinstance(text, str) else text
            raise refusal(name, shown, f"strings of 1 to {most_characters} characters")


def _check_ids(name: str, token_ids: Sequence[object], *, most: int) -> None:
    if len(token_ids) > most:
        raise ValueError(f"`{name}` has {len(token_ids)} ids; it must have at most {most}.")
    for token_id in token_ids:
        _TOKEN_ID(name, token_id)


def _between(low: float, high: float) -> Check:
    """Return the check for a finite number in [low, high]; NaN is outside, as it compares false."""
    return number(f"a number in [{low:g}, {high:g}]", lambda value: low <= value <= high)


_TOKEN_ID = whole_number("token ids of at least 0", lambda value: value >= 0)
_BIAS = _between(-MAX_LOGIT_BIAS, MAX_LOGIT_BIAS)
_NUM_LOGPROBS = whole_number(f"a whole number in [0, {MAX_LOGPROBS}]", lambda value: 0 <= value <= MAX_LOGPROBS)

_CHECKS = {
    "thinking_token_budget": optional(
        whole_number("a whole number of at least 0, or -1 for no limit", lambda value: value >= -1)
    ),
    "max_tokens": optional(whole_number("a whole number of at least 0, or -1 for no limit", lambda value: value >= -1)),
    "temperature": _between(0, MAX_TEMPERATURE),
    "top_p": _between(0, 1),
    "top_k": optional(whole_number("a whole number of at least 1, or 0 or -1 for all", lambda value: value >= -1)),
    "min_p": _between(0, 1),
    "repetition_penalty": number(
        f"a number in (0, {MAX_REPETITION_PENALTY:g}]", lambda value: 0 < value <= MAX_REPETITION_PENALTY
    ),
    "presence_penalty": _between(-MAX_PENALTY, MAX_PENALTY),
    "frequency_penalty": _between(-MAX_PENALTY, MAX_PENALTY),
    "min_tokens": whole_number("a whole number of at least 0", lambda value: value >= 0),
    "include_stop_str_in_output": switch(),
    "skip_special_tokens": switch(),
    "ignore_eos": switch(),
    "seed": optional(whole_number("a signed 64-bit integer", lambda value: -(2**63) <= value < 2**63)),
    "logprobs": optional(_NUM_LOGPROBS),
    "prompt_logprobs": optional(_NUM_LOGPROBS),
    "n": whole_number(f"a whole number in [1, {MAX_CHOICES}]", lambda value: 1 <= value <= MAX_CHOICES),
}
