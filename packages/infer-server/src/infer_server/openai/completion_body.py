"""The body of `POST /v1/completions` and what it asks of the engine. Knows every field; knows no vocabulary.

A field that asks for what this server does not do is refused by name unless it has its neutral value.
"""

from typing import Annotated

from infer_engine.protocol import GenerateRequest
from infer_server.errors import ApiError
from infer_server.openai.refusals import Neutral, check_model, check_neutral, check_range, out_of_range
from infer_server.openai.sampling_fields import GenerationFields, described, sampling_params

MAX_PROMPTS = 64
MAX_LOGPROBS = 5
DEFAULT_MAX_TOKENS = 128

Prompt = str | list[str | int | list[int]]

# The type above is as close as the decoder gets; these are what is taken.
_TEXT = {"type": "string", "minLength": 1}
_TOKEN_IDS = {"type": "array", "items": {"type": "integer", "minimum": 0}, "minItems": 1}

_NEUTRAL: dict[str, Neutral] = {"suffix": (("",), "null")}


class CompletionBody(GenerationFields, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The body of `POST /v1/completions`. A null is the same as leaving the field out."""

    prompt: Annotated[
        Prompt,
        described(
            "Text, token ids, or a list of up to 64 of either, each of which gets `n` choices.",
            oneOf=[
                _TEXT,
                {"type": "array", "items": _TEXT, "minItems": 1, "maxItems": MAX_PROMPTS},
                _TOKEN_IDS,
                {"type": "array", "items": _TOKEN_IDS, "minItems": 1, "maxItems": MAX_PROMPTS},
            ],
        ),
    ]
    max_tokens: Annotated[int | None, described("Most tokens to generate; 128 if left out.", minimum=1)] = None
    echo: Annotated[bool | None, described("Begin each choice's text with the prompt.")] = None
    logprobs: Annotated[
        int | None,
        described(
            "List the log-probability of each token and of this many most probable ones; with `echo`, of the "
            "prompt's tokens too.",
            minimum=0,
            maximum=MAX_LOGPROBS,
        ),
    ] = None
    best_of: Annotated[int | None, described("Only the value of `n`: the choices made are those sent.")] = None
    suffix: Annotated[str | None, described('Only null or "".', enum=[None, ""])] = None

    def __post_init__(self) -> None:
        """Refuse a prompt that is none: that comes before all other refusals, of unknown fields too."""
        _check_prompt(self.prompt)


def completion_requests(body: CompletionBody, *, served_model: str) -> list[GenerateRequest]:
    """Return one request per prompt of `body`, in the prompts' order.

    Raises:
        ApiError: 404 for a model that is not served, 400 for a feature that is not supported or a value out of range.
    """
    prompts = _prompts(body.prompt)
    check_model(body.model, served_model=served_model)
    if len(prompts) > MAX_PROMPTS:
        raise out_of_range("prompt", f"`prompt` has {len(prompts)} prompts; send at most {MAX_PROMPTS} in one request.")
    n = 1 if body.n is None else body.n
    check_neutral(body, _NEUTRAL | {"best_of": ((n,), f"{n}, the value of `n`")})
    check_range("logprobs", body.logprobs, low=0, high=MAX_LOGPROBS)
    params = sampling_params(
        body,
        max_tokens=DEFAULT_MAX_TOKENS if body.max_tokens is None else body.max_tokens,
        logprobs=body.logprobs,
        prompt_logprobs=body.logprobs if body.echo else None,
    )
    return [
        GenerateRequest(prompt=prompt, params=params, priority=body.priority or 0, cache_salt=body.cache_salt)
        for prompt in prompts
    ]


def _check_prompt(prompt: Prompt) -> None:
    prompts: list[object] = [prompt]
    if isinstance(prompt, list):
        kinds = set(map(type, prompt))
        if len(kinds) > 1:
            raise _bad_prompt("`prompt` mixes strings, token ids and lists; send one kind.", code="invalid_type")
        prompts = [prompt] if kinds <= {int} else list(prompt)
    if not all(prompts):
        raise _bad_prompt("`prompt` is empty, or one of its prompts is; send at least one token.", code="empty_prompt")


def _prompts(prompt: Prompt) -> list[str | list[int]]:
    """Return the prompts, of which `_check_prompt` has seen that they are of one kind and none is empty."""
    several = isinstance(prompt, list) and not isinstance(prompt[0], int)
    return list(prompt) if several else [prompt]  # type: ignore[list-item,arg-type]  # the one kind is `str` or `list[int]` by then


def _bad_prompt(message: str, *, code: str) -> ApiError:
    return ApiError(400, message, code=code, param="prompt")
