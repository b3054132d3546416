"""The fields that the bodies of completions and chats share, and the `SamplingParams` that they make.

They are the fields of OpenAI's API (https://platform.openai.com/docs/api-reference) and those that vLLM and SGLang have
added. A null is the same as leaving a field out.
"""

import re
from typing import Annotated, Any

import msgspec

from infer_engine.protocol import SamplingParams
from infer_engine.protocol.sampling import (
    MAX_ALLOWED_TOKEN_IDS,
    MAX_BAD_WORD_CHARACTERS,
    MAX_BAD_WORDS,
    MAX_CHOICES,
    MAX_LOGIT_BIAS_ENTRIES,
    MAX_STOP_CHARACTERS,
    MAX_STOP_STRINGS,
    MAX_STOP_TOKEN_IDS,
)
from infer_engine.protocol.structured_outputs import MAX_CHOICES_OF_TEXT
from infer_server.api.fields import TokenId, check_restricted, described, restricted
from infer_server.api.foreign_fields import ForeignFields
from infer_server.api.shared_fields import MinP, ModelId, Seed, StopString, Stream, Temperature, TopK, TopP
from infer_server.api.validation import out_of_range, refused_value
from infer_server.errors import shorten
from infer_server.openai.structured_outputs import (
    TEXT_LENGTHS,
    ResponseFormat,
    StructuredOutputsField,
    structured_outputs_of,
)

Bias = Annotated[float, described("What is added.", minimum=-100, maximum=100)]


class StreamOptions(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a stream has beside its tokens. Without a stream it has no effect: the reply has its usage."""

    include_usage: Annotated[
        bool | None, described("End with one more chunk that has the usage of the whole request.")
    ] = None
    continuous_usage_stats: Annotated[
        bool | None, described("With `include_usage`: every chunk has the usage of its choice so far.")
    ] = None
    include_obfuscation: Annotated[
        bool | None, restricted("Only false: chunks are not padded.", allow=(False,), send="false")
    ] = None


class GenerationFields(ForeignFields, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The fields of every body that asks for generated text."""

    model: ModelId = None
    temperature: Temperature = None
    top_p: TopP = None
    top_k: TopK = None
    min_p: MinP = None
    presence_penalty: Annotated[
        float | None, described("Taken from the logits of tokens that the text has.", minimum=-2, maximum=2)
    ] = None
    frequency_penalty: Annotated[
        float | None,
        described("Taken from the logit of a token once for each time that it occurs.", minimum=-2, maximum=2),
    ] = None
    repetition_penalty: Annotated[
        float | None,
        described(
            "Divides the positive logits of tokens of prompt and text, multiplies the others.",
            exclusiveMinimum=0,
            maximum=10,
        ),
    ] = None
    logit_bias: Annotated[
        dict[str, Bias] | None,
        described(
            "Token ids, as texts, with what is added to their logits.",
            maxProperties=MAX_LOGIT_BIAS_ENTRIES,
            propertyNames={"pattern": "^[0-9]{1,10}$"},
        ),
    ] = None
    stop: Annotated[
        StopString | list[StopString] | None,
        described(
            f"One string or more, of up to {MAX_STOP_CHARACTERS:,} characters, that end the text and are not part of "
            "it; special tokens too.",
            maxItems=MAX_STOP_STRINGS,
        ),
    ] = None
    stop_token_ids: Annotated[
        list[TokenId] | None, described("Token ids that end the text.", maxItems=MAX_STOP_TOKEN_IDS)
    ] = None
    include_stop_str_in_output: Annotated[bool | None, described("Keep what ended the text as its end.")] = None
    skip_special_tokens: Annotated[bool | None, described("False: special tokens are in the text too.")] = None
    bad_words: Annotated[
        list[Annotated[str, described("A text.", minLength=1, maxLength=MAX_BAD_WORD_CHARACTERS)]] | None,
        described("Texts that are not generated, in the tokens that the tokenizer makes.", maxItems=MAX_BAD_WORDS),
    ] = None
    allowed_token_ids: Annotated[
        list[TokenId] | None,
        described("The only tokens that are generated.", minItems=1, maxItems=MAX_ALLOWED_TOKEN_IDS),
    ] = None
    ignore_eos: Annotated[bool | None, described("Go on after an end-of-sequence token.")] = None
    min_tokens: Annotated[
        int | None, described("Tokens to generate before one that ends the text may come.", minimum=0)
    ] = None
    seed: Seed = None
    n: Annotated[int | None, described("Choices per prompt; 1 if left out.", minimum=1, maximum=MAX_CHOICES)] = None
    stream: Stream = None
    stream_options: Annotated[StreamOptions | None, described("What a stream carries beside its tokens.")] = None
    priority: Annotated[
        int | None,
        described("With the `priority` policy lower numbers come first.", minimum=1 - 2**31, maximum=2**31 - 1),
    ] = None
    cache_salt: Annotated[
        str | None, described("Cached prefixes are shared only with requests of the same salt and API key.")
    ] = None
    response_format: Annotated[ResponseFormat | None, described("What the text looks like.")] = None
    structured_outputs: Annotated[
        StructuredOutputsField | None, described("What the text looks like, in vLLM's words.")
    ] = None
    grammar: Annotated[
        str | None, described("A grammar in GBNF or Lark, as llama.cpp's clients send it.", **TEXT_LENGTHS)
    ] = None
    json_schema: Annotated[Any, described("A JSON Schema, as llama.cpp's clients send it.")] = None
    guided_json: Annotated[Any, described("`structured_outputs.json` of older vLLM.")] = None
    guided_regex: Annotated[str | None, described("`structured_outputs.regex` of older vLLM.", **TEXT_LENGTHS)] = None
    guided_choice: Annotated[
        list[str] | None,
        described("`structured_outputs.choice` of older vLLM.", minItems=1, maxItems=MAX_CHOICES_OF_TEXT),
    ] = None
    guided_grammar: Annotated[str | None, described("`structured_outputs.grammar` of older vLLM.", **TEXT_LENGTHS)] = (
        None
    )
    guided_whitespace_pattern: Annotated[
        str | None, described("The whitespace of JSON, as older vLLM takes it.", **TEXT_LENGTHS)
    ] = None


# Fields with the same name, meaning and default in `SamplingParams`.
_SAME_NAMED_FIELDS = (
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "presence_penalty",
    "frequency_penalty",
    "repetition_penalty",
    "stop",
    "include_stop_str_in_output",
    "skip_special_tokens",
    "bad_words",
    "allowed_token_ids",
    "ignore_eos",
    "min_tokens",
    "seed",
    "n",
)


def sampling_params(
    fields: GenerationFields,
    *,
    max_tokens: int | None,
    logprobs: int | None,
    prompt_logprobs: int | None,
) -> SamplingParams:
    """Return the sampling parameters of `fields`; the other arguments have other names in each kind of body.

    Raises:
        ApiError: 400, `invalid_value`: a value is out of range.
    """
    structured_outputs = structured_outputs_of(
        structured_outputs=fields.structured_outputs,
        grammar=fields.grammar,
        json_schema=fields.json_schema,
        guided=StructuredOutputsField(
            json=fields.guided_json,
            regex=fields.guided_regex,
            choice=fields.guided_choice,
            grammar=fields.guided_grammar,
            whitespace_pattern=fields.guided_whitespace_pattern,
        ),
        response_format=fields.response_format,
    )
    given = {name: value for name in _SAME_NAMED_FIELDS if (value := getattr(fields, name)) is not None}
    try:
        return SamplingParams(
            max_tokens=max_tokens,
            logprobs=logprobs,
            prompt_logprobs=prompt_logprobs,
            stop_token_ids=tuple(fields.stop_token_ids or ()),
            logit_bias=_biases(fields.logit_bias or {}),
            structured_outputs=structured_outputs,
            **given,
        )
    except ValueError as error:
        raise refused_value(error) from None


def most_tokens(**limits: int | None) -> int | None:
    """Return the least of `limits`, each under its field's name; None and -1 are no limit.

    Raises:
        ApiError: 400, `invalid_value`.
    """
    least: int | None = None
    for name, value in limits.items():
        if value is not None and value < -1:
            raise out_of_range(name, f"`{name}` is {value}; it must be a whole number, or -1 for no limit.")
        if value not in (None, -1) and (least is None or value < least):
            least = value
    return least


def check_stream_options(options: StreamOptions | None) -> None:
    """Refuse options that are not supported.

    Raises:
        ApiError: 400, `unsupported_value`.
    """
    if options is not None:
        check_restricted(options, prefix="stream_options.")


def _biases(logit_bias: dict[str, float]) -> dict[int, float]:
    """Return the biases by token id; in JSON, keys are strings."""
    if len(logit_bias) > MAX_LOGIT_BIAS_ENTRIES:
        raise out_of_range(
            "logit_bias", f"`logit_bias` has {len(logit_bias)} entries; send at most {MAX_LOGIT_BIAS_ENTRIES}."
        )
    for key in logit_bias:
        if not re.fullmatch(r"[0-9]{1,10}", key):
            raise out_of_range(
                "logit_bias", f'`logit_bias` has the key {shorten(key, 40)!r}; it must be a token id, such as "42".'
            )
    return {int(key): bias for key, bias in logit_bias.items()}
