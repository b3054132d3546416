"""The fields that the bodies of completions and chats share, and the `SamplingParams` that they make.

They are the fields of OpenAI's API (https://platform.openai.com/docs/api-reference) and those that vLLM and SGLang have
added. A null is the same as leaving a field out.
"""

import re
from typing import Annotated

import msgspec

from infer_engine.protocol import SamplingParams
from infer_engine.protocol.sampling import BIAS, MAX_LOGIT_BIAS_ENTRIES
from infer_server.api.fields import check_restricted, described, restricted, spellings_in
from infer_server.api.sampling_fields import sampling_params, with_sampling_fields
from infer_server.api.shared_fields import ReturnTokenIds
from infer_server.api.validation import too_many, wrong_value
from infer_server.errors import shorten
from infer_server.openai.structured_outputs import FormatFields, structured_outputs_of

Bias = Annotated[float, described("What is added.", **BIAS.json_schema)]


class StreamOptions(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The parts of a stream beside its tokens. Without a stream it has no effect: the reply has its usage."""

    include_usage: Annotated[
        bool | None, described("End with one more chunk that has the usage of the whole request.")
    ] = None
    continuous_usage_stats: Annotated[
        bool | None, described("With `include_usage`: every chunk has the usage of its choice so far.")
    ] = None
    include_obfuscation: Annotated[
        bool | None, restricted("Only false: chunks are not padded.", allow=(False,), send="false")
    ] = None


@with_sampling_fields("completions")
class GenerationFields(FormatFields, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The fields of every body that asks for generated text."""

    logit_bias: Annotated[
        dict[str, Bias] | None,
        described(
            "Token ids, as texts, with what is added to their logits.",
            maxProperties=MAX_LOGIT_BIAS_ENTRIES,
            propertyNames={"pattern": "^[0-9]{1,10}$"},
        ),
    ] = None
    stream_options: Annotated[StreamOptions | None, described("What a stream carries beside its tokens.")] = None
    return_token_ids: ReturnTokenIds = None
    priority: Annotated[
        int | None,
        described("With the `priority` policy lower numbers come first.", minimum=1 - 2**31, maximum=2**31 - 1),
    ] = None
    cache_salt: Annotated[
        str | None, described("Cached prefixes are shared only with requests of the same salt and API key.")
    ] = None


def generation_params(
    fields: GenerationFields,
    *,
    max_tokens: int | None,
    logprobs: int | None,
    prompt_logprobs: int | None = None,
    thinking_token_budget: int | None = None,
) -> SamplingParams:
    """Return the sampling parameters of `fields`; the other arguments have other names in each kind of body.

    Raises:
        ApiError: 400: a value is out of range, or an option of streams is not supported.
    """
    params = sampling_params(
        fields,
        max_tokens=max_tokens,
        logprobs=logprobs,
        prompt_logprobs=prompt_logprobs,
        thinking_token_budget=thinking_token_budget,
        structured_outputs=structured_outputs_of(fields),
        logit_bias=_biases(fields.logit_bias or {}),
    )
    if fields.stream_options is not None:
        check_restricted(fields.stream_options, prefix="stream_options.")
    return params


def most_tokens(body: GenerationFields, *, left_out: int | None = None) -> int | None:
    """Return the least of the limits of `body`; -1 is no limit. Without any it is `left_out`.

    Raises:
        ApiError: 400, `invalid_value`.
    """
    limits = spellings_in(body, "max_tokens")
    if not limits:
        return left_out
    for name, value in limits.items():
        if value < -1:
            message = f"`{name}` is {value}; it must be a whole number, or -1 for no limit."
            raise wrong_value(name, message, code="integer_below_min_value")
    return min((value for value in limits.values() if value != -1), default=None)


def _biases(logit_bias: dict[str, float]) -> dict[int, float]:
    """Return the biases by token id; in JSON, keys are strings."""
    if len(logit_bias) > MAX_LOGIT_BIAS_ENTRIES:
        raise too_many("logit_bias", len(logit_bias), "entries", most=MAX_LOGIT_BIAS_ENTRIES)
    for key in logit_bias:
        if not re.fullmatch(r"[0-9]{1,10}", key):
            raise wrong_value(
                "logit_bias", f'`logit_bias` has the key {shorten(key, 40)!r}; it must be a token id, such as "42".'
            )
    return {int(key): bias for key, bias in logit_bias.items()}
