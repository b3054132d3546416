"""`SamplingParams`: how the tokens of a request are chosen, when it ends, and what of that a model recommends."""

from collections.abc import Mapping
from types import NoneType
from typing import TYPE_CHECKING, Annotated, Any, get_args, get_type_hints

import msgspec
from msgspec import structs

from infer_engine.protocol.request_fields import (
    ALL,
    OPENAI,
    TOKEN_ID,
    RequestField,
    declared_fields,
    numbers,
    switch,
    texts,
    token_ids,
    whole_numbers,
    with_fields,
)
from infer_engine.protocol.structured_outputs import StructuredOutputs
from infer_engine.protocol.values import WrongValueError, optional, refusal, too_many

MAX_STOP_STRINGS = 64
MAX_STOP_CHARACTERS = 1024
MAX_STOP_TOKEN_IDS = 1024
MAX_LOGIT_BIAS_ENTRIES = 1024
MAX_LOGPROBS = 20
MAX_TOP_K = 2**31 - 1
GREEDY_BELOW = 1e-5
BIAS = numbers(-100, 100)


def _check_bias(name: str, logit_bias: object) -> None:
    if not isinstance(logit_bias, dict):
        raise refusal(name, logit_bias, "a mapping from token ids to numbers")
    if len(logit_bias) > MAX_LOGIT_BIAS_ENTRIES:
        raise too_many(name, len(logit_bias), "entries", most=MAX_LOGIT_BIAS_ENTRIES)
    for token_id, bias in logit_bias.items():
        TOKEN_ID.check(name, token_id)
        BIAS.check(name, bias)


def _check_outputs(name: str, value: object) -> None:
    if not isinstance(value, StructuredOutputs):
        raise refusal(name, value, "`StructuredOutputs` or None")


def _limits(*spellings: str, **names: Any) -> RequestField:
    allowed = "a whole number of at least 0, or -1 for no limit"
    return whole_numbers(-1, allowed=allowed, apis=(), spellings=spellings, **names)


class SamplingParams(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The way in which a request's tokens are chosen, and when it ends. The declaration of a field says what it does.

    What other engines write for "none" and "all" is taken, and kept in one form: `max_tokens` -1, `top_k` 0 and -1,
    `seed` -1, a `top_p` of 0, None for lists, empty stop strings.

    Raises:
        ValueError: a value is of the wrong type or out of range; the message names the field, the value and what is
            allowed.
    """

    temperature: Annotated[
        float,
        "0 always takes the most probable token; 1 if left out.",
        numbers(0, 100, apis=ALL, key="temperature"),
    ] = 1.0
    top_p: Annotated[
        float,
        "Sample from the most probable tokens that hold this much probability; 1 if left out, 0 is greedy.",
        numbers(0, 1, apis=ALL, key="top_p"),
    ] = 1.0
    top_k: Annotated[
        int | None,
        "Sample from this many most probable tokens; 0 and -1: from all.",
        whole_numbers(-1, allowed="a whole number of at least 1, or 0 or -1 for all", apis=ALL, key="top_k"),
    ] = None
    min_p: Annotated[
        float,
        "Drop tokens less probable than this times the most probable one.",
        numbers(0, 1, apis=OPENAI, key="min_p"),
    ] = 0.0
    repetition_penalty: Annotated[
        float,
        "Divides the positive logits of tokens of prompt and text, multiplies the others.",
        numbers(0, 10, above_low=True, elsewhere={"repeat_penalty": (1,), "rep_pen": (1,)}, key="repetition_penalty"),
    ] = 1.0
    presence_penalty: Annotated[float, "Taken from the logits of tokens that the text has.", numbers(-2, 2)] = 0.0
    frequency_penalty: Annotated[
        float, "Taken from the logit of a token once for each time that it occurs.", numbers(-2, 2)
    ] = 0.0
    logit_bias: Annotated[
        dict[int, float],
        "By token id, what is added to its logit.",
        RequestField(
            allowed=f"up to {MAX_LOGIT_BIAS_ENTRIES} token ids, each with {BIAS.allowed}", check=_check_bias, apis=()
        ),
    ] = {}
    allowed_token_ids: Annotated[
        tuple[int, ...] | None, "The only tokens that are generated.", token_ids(1024, least=1)
    ] = None
    bad_words: Annotated[
        tuple[str, ...] | str,
        "Texts that are not generated, in the tokens that the tokenizer makes.",
        texts(1024, most_characters=256, elsewhere={"banned_strings": ("", [])}),
    ] = ()
    seed: Annotated[
        int | None,
        "The same seed gives the same tokens; -1: none.",
        whole_numbers(-(2**63), 2**63 - 1, allowed="a signed 64-bit integer", apis=OPENAI, aliases=("random_seed",)),
    ] = None
    n: Annotated[int, "Choices per prompt; 1 if left out.", whole_numbers(1, 128)] = 1
    max_tokens: Annotated[
        int | None,
        "Most tokens to generate; -1, or None: what the context leaves. 0 only reads the prompt.",
        _limits(
            "max_completion_tokens",
            "max_tokens",
            "n_predict",
            aliases=("num_predict", "max_new_tokens"),
            key="max_new_tokens",
        ),
    ] = 128
    min_tokens: Annotated[int, "Tokens to generate before one that ends the text may come.", whole_numbers(0)] = 0
    stop: Annotated[
        tuple[str, ...] | str,
        f"One string or more, of up to {MAX_STOP_CHARACTERS:,} characters, that end the text and are not part of it; "
        "special tokens too.",
        texts(MAX_STOP_STRINGS, least_characters=0, most_characters=MAX_STOP_CHARACTERS),
    ] = ()
    stop_token_ids: Annotated[tuple[int, ...], "Token ids that end the text.", token_ids(MAX_STOP_TOKEN_IDS)] = ()
    include_stop_str_in_output: Annotated[
        bool, "Keep what ended the text as its end.", switch(aliases=("no_stop_trim",))
    ] = False
    skip_special_tokens: Annotated[bool, "False: special tokens are in the text too.", switch()] = True
    ignore_eos: Annotated[bool, "Go on after an end-of-sequence token.", switch()] = False
    logprobs: Annotated[
        int | None,
        "List the log-probability of each generated token and of this many most probable ones.",
        whole_numbers(0, MAX_LOGPROBS, apis=(), elsewhere={"n_probs": (0,)}),
    ] = None
    prompt_logprobs: Annotated[
        int | None,
        "The same for each token of the prompt but the first.",
        whole_numbers(0, MAX_LOGPROBS, apis=()),
    ] = None
    thinking_token_budget: Annotated[
        int | None,
        "Most tokens of thinking: then its end is forced. -1: no limit; left out: the server's.",
        _limits(
            "thinking_token_budget",
            "thinking_budget",
            "reasoning_budget",
            "reasoning.max_tokens",
            "thinking.budget_tokens",
        ),
    ] = None
    structured_outputs: Annotated[
        StructuredOutputs | None,
        "What the text must look like.",
        RequestField(allowed="`StructuredOutputs`", check=_check_outputs, apis=()),
    ] = None

    def __post_init__(self) -> None:
        """Check all values, and bring them into one form. Lists of texts may be one text without a list."""
        for name in ("stop", "bad_words", "stop_token_ids", "allowed_token_ids"):
            values = getattr(self, name)
            if name != "allowed_token_ids" or values is not None:
                structs.force_setattr(self, name, _items(name, values))
        for name, check in _CHECKS.items():
            check(name, getattr(self, name))
        self._normalize()
        if self.max_tokens is not None and self.min_tokens > self.max_tokens:
            allowed = f"at most `max_tokens`, which is {self.max_tokens}"
            raise refusal("min_tokens", self.min_tokens, allowed, code="conflicting_fields")
        if self.allowed_token_ids is not None:
            if not self.allowed_token_ids:
                raise WrongValueError("`allowed_token_ids` is empty, so no token could be chosen; leave it out.")
            if self.structured_outputs is not None:
                message = "`allowed_token_ids` cannot be kept beside `structured_outputs`; send one of them."
                raise WrongValueError(message, code="conflicting_fields")

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
            structs.force_setattr(self, name, value)


SAMPLING_FIELDS = declared_fields(SamplingParams)
"""The declarations of the fields of `SamplingParams`."""
SamplingParams.__doc__ = f"{SamplingParams.__doc__}\n    Attributes:\n" + "".join(  # for `help`
    f"        {name}: {field.sentence} Allowed: {field.allowed}.\n" for name, field in SAMPLING_FIELDS.items()
)
_CHECKS = {
    name: optional(SAMPLING_FIELDS[name].check) if NoneType in get_args(kind) else SAMPLING_FIELDS[name].check
    for name, kind in get_type_hints(SamplingParams).items()
}


@with_fields({name: field.json_type | None for name, field in SAMPLING_FIELDS.items() if field.key})
class SamplingDefaults(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Values of the fields of `SamplingParams` that a checkpoint may recommend; None: those of `SamplingParams`."""

    if TYPE_CHECKING:

        def __init__(self, **values: float | None) -> None: ...

    @property
    def given(self) -> dict[str, Any]:
        """The values that are not None, by name."""
        return {name: value for name, value in structs.asdict(self).items() if value is not None}

    def fill(self, params: SamplingParams, *, leaving: Mapping[str, Any] | None = None) -> SamplingParams:
        """Return `params` with these values where they have their own defaults; names of `leaving` are left alone."""
        usual = structs.asdict(SamplingParams(max_tokens=None))
        changes = {
            name: value
            for name, value in self.given.items()
            if name not in (leaving or {}) and getattr(params, name) == usual[name]
        }
        return structs.replace(params, **changes) if changes else params


def _items(name: str, values: object) -> tuple[object, ...]:
    """Return a list as a tuple; one text is a list of itself, and None an empty list."""
    if values is None:
        return ()
    if isinstance(values, str) and name in ("stop", "bad_words"):
        return (values,)
    if not isinstance(values, tuple | list):
        raise refusal(name, values, "a list")
    return tuple(values)
