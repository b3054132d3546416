"""The body of `POST /v1/completions` and what it asks of the engine. Knows every field; knows no vocabulary.

The fields are those of OpenAI's completions API (https://platform.openai.com/docs/api-reference/completions) and the
sampling fields that vLLM and SGLang added to it. One that asks for what this server does not do is refused by name
unless it has its neutral value.
"""

import re

import msgspec

from infer_engine.protocol import GenerateRequest, SamplingParams
from infer_server.errors import ApiError, shorten

MAX_PROMPTS = 64
DEFAULT_MAX_TOKENS = 128

Prompt = str | list[str | int | list[int]]


class StreamOptions(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a stream carries beside its tokens.

    Attributes:
        include_usage: end with one more chunk that has the usage of the whole request.
        include_obfuscation: only false; chunks are not padded.
    """

    include_usage: bool | None = None
    include_obfuscation: bool | None = None


class CompletionBody(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The body of `POST /v1/completions`. A null is the same as leaving the field out.

    Attributes:
        prompt: text, token ids, or a list of up to 64 of either, each of which gets a choice of its own.
        model: id of the served model; may be left out.
        max_tokens: most tokens to generate, at least 1; 128 if left out.
        temperature: in [0, 100], default 1; 0 always takes the most probable token.
        top_p: in (0, 1], default 1: sample from the most probable tokens that hold this much probability.
        top_k: at least 1: sample from this many most probable tokens.
        min_p: in [0, 1], default 0: drop tokens less probable than this times the most probable one.
        stop: a string, or up to 16, that end the text; they are never part of it.
        stop_token_ids: token ids that end the text.
        ignore_eos: go on after an end-of-sequence token.
        seed: the same seed gives the same tokens.
        stream: send events as tokens are made, rather than one object at the end.
        stream_options: what a stream carries beside its tokens.
        user: taken, and without effect.
        metadata: taken, and without effect.
        store: taken, and without effect.
        logit_bias: token ids, as texts, with what is added to their logits, in [-100, 100]; up to 1,024.
        presence_penalty: in [-2, 2], taken from the logits of tokens that the text has.
        frequency_penalty: in [-2, 2], taken from them once for each time that they occur.
        repetition_penalty: in (0, 10], divides the positive logits of tokens of prompt and text, multiplies others.
        min_tokens: tokens to generate before an end-of-sequence token or one of `stop_token_ids` may come.
        priority: with the `priority` policy lower numbers come first.
        cache_salt: cached prefixes are shared only with requests of the same salt.
        n: only 1.
        best_of: only 1.
        echo: only false.
        logprobs: only null.
        suffix: only null.
    """

    prompt: Prompt
    model: str | None = None
    max_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    stop: str | list[str] | None = None
    stop_token_ids: list[int] | None = None
    ignore_eos: bool | None = None
    seed: int | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    user: str | None = None
    metadata: dict[str, str] | None = None
    store: bool | None = None
    cache_salt: str | None = None
    n: int | None = None
    best_of: int | None = None
    echo: bool | None = None
    logprobs: int | None = None
    suffix: str | None = None
    logit_bias: dict[str, float] | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    repetition_penalty: float | None = None
    min_tokens: int | None = None
    priority: int | None = None


_NEUTRAL: dict[str, tuple[object, str]] = {
    "n": (1, "1"),
    "best_of": (1, "1"),
    "echo": (False, "false"),
    "logprobs": (None, "null"),
    "suffix": ("", "null"),
}


def generate_requests(body: CompletionBody, *, served_model: str, streaming: bool) -> list[GenerateRequest]:
    """Return one request per prompt of `body`, in the prompts' order.

    Raises:
        ApiError: 400 for a prompt that is empty or mixes kinds; then 422 for a model that is not served, a feature
            that is not supported and a value out of range.
    """
    prompts = _prompts(body.prompt)
    if body.model is not None and body.model != served_model:
        raise ApiError(
            422,
            f"The model `{shorten(body.model, 100)}` is not served here; send `{served_model}`, or leave `model` out.",
            code="model_not_found",
            param="model",
        )
    if len(prompts) > MAX_PROMPTS:
        raise _out_of_range(
            "prompt", f"`prompt` has {len(prompts)} prompts; send at most {MAX_PROMPTS} in one request."
        )
    _refuse_unsupported(body)
    if body.stream_options and body.stream_options.include_usage and not streaming:
        raise _out_of_range(
            "stream_options", "`stream_options.include_usage` is for streams; send `stream` true, or leave it out."
        )
    params = _sampling_params(body)
    return [
        GenerateRequest(prompt=prompt, params=params, priority=body.priority or 0, cache_salt=body.cache_salt)
        for prompt in prompts
    ]


def _prompts(prompt: Prompt) -> list[str | list[int]]:
    prompts: list[object] = [prompt]
    if isinstance(prompt, list):
        kinds = set(map(type, prompt))
        if len(kinds) > 1:
            raise _bad_prompt("`prompt` mixes strings, token ids and lists; send one kind.", code="invalid_type")
        prompts = [prompt] if kinds <= {int} else list(prompt)
    if not all(prompts):
        raise _bad_prompt("`prompt` is empty, or one of its prompts is; send at least one token.", code="empty_prompt")
    return list(prompts)  # type: ignore[arg-type]  # the one kind is `str` or `list[int]` by now


def _refuse_unsupported(body: CompletionBody) -> None:
    for name, (neutral, spelling) in _NEUTRAL.items():
        value = getattr(body, name)
        if value is not None and value != neutral:
            raise _unsupported(name, value, spelling)
    if body.stream_options and body.stream_options.include_obfuscation:
        raise _unsupported("stream_options.include_obfuscation", "true", "false")


def _sampling_params(body: CompletionBody) -> SamplingParams:
    asked = {
        "temperature": body.temperature,
        "top_p": body.top_p,
        "top_k": body.top_k,
        "min_p": body.min_p,
        "stop": (body.stop,) if isinstance(body.stop, str) else body.stop and tuple(body.stop),
        "stop_token_ids": body.stop_token_ids and tuple(body.stop_token_ids),
        "ignore_eos": body.ignore_eos,
        "seed": body.seed,
        "logit_bias": body.logit_bias and _biases(body.logit_bias),
        "presence_penalty": body.presence_penalty,
        "frequency_penalty": body.frequency_penalty,
        "repetition_penalty": body.repetition_penalty,
        "min_tokens": body.min_tokens,
        "max_tokens": DEFAULT_MAX_TOKENS if body.max_tokens is None else body.max_tokens,
    }
    given = {name: value for name, value in asked.items() if value is not None and value not in ([], {})}
    try:
        return SamplingParams(**given)  # type: ignore[arg-type]  # the types are those of `CompletionBody`'s fields
    except ValueError as error:
        blamed = re.match(r"`(\w+)`", str(error))
        raise _out_of_range(blamed[1] if blamed else None, str(error)) from None


def _biases(logit_bias: dict[str, float]) -> dict[int, float]:
    """Return the biases by token id; JSON has texts for keys."""
    for key in logit_bias:
        if not re.fullmatch(r"[0-9]{1,10}", key):
            raise _out_of_range(
                "logit_bias", f'`logit_bias` has the key {shorten(key, 40)!r}; it must be a token id, such as "42".'
            )
    return {int(key): bias for key, bias in logit_bias.items()}


def _bad_prompt(message: str, *, code: str) -> ApiError:
    return ApiError(400, message, code=code, param="prompt")


def _out_of_range(param: str | None, message: str) -> ApiError:
    return ApiError(422, message, code="invalid_value", param=param)


def _unsupported(name: str, value: object, neutral: str) -> ApiError:
    message = f"`{name}` is {shorten(str(value), 40)}, which is not supported; send {neutral}, or leave it out."
    return ApiError(422, message, code="unsupported_value", param=name)
