"""The body of `POST /v1/completions`, and the engine's requests that it makes.

Every field of OpenAI's own API is here. Fields that this server does not support are restricted to the values with
which they have no effect.
"""

from typing import Annotated

from infer_engine.protocol import GenerateRequest
from infer_server.errors import ApiError
from infer_server.openai.fields import check_restricted, described, restricted
from infer_server.openai.generation_fields import GenerationFields, sampling_params
from infer_server.openai.validation import check_model, check_range, out_of_range, unsupported

MAX_PROMPTS = 64
MAX_LOGPROBS = 5
DEFAULT_MAX_TOKENS = 128

Prompt = str | list[str | int | list[int]]

# The decoder cannot express the type of a prompt exactly; these schemas do.
_TEXT = {"type": "string", "minLength": 1}
_TOKEN_IDS = {"type": "array", "items": {"type": "integer", "minimum": 0}, "minItems": 1}


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
    suffix: Annotated[str | None, restricted('Only null or "".', allow=("",))] = None

    def __post_init__(self) -> None:
        """Check the prompt while decoding: its errors come before those of other fields, and of unknown fields too."""
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
    check_restricted(body)
    if body.best_of not in (None, n):
        raise unsupported("best_of", body.best_of, send=f"{n}, the value of `n`")
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
    """Return the prompts. `_check_prompt` has checked that they are of one kind and that none is empty."""
    several = isinstance(prompt, list) and not isinstance(prompt[0], int)
    return list(prompt) if several else [prompt]  # type: ignore[list-item,arg-type]  # `_check_prompt` leaves `str` or `list[int]`


def _bad_prompt(message: str, *, code: str) -> ApiError:
    return ApiError(400, message, code=code, param="prompt")
