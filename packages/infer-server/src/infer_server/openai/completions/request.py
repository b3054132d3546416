"""The body of `POST /v1/completions`, and the engine's requests that it makes.

Fields of OpenAI's own API that this server does not support, and those of other servers, are in the table of
`infer_server.api.foreign_fields`.
"""

from collections.abc import Sequence
from typing import Annotated

from infer_engine.protocol import GenerateRequest, InfillPrompt
from infer_engine.protocol.sampling import MAX_LOGPROBS
from infer_server.api.fields import described, spellings_in
from infer_server.api.foreign_fields import check_foreign
from infer_server.api.validation import check_model, check_range, conflict, too_many, unsupported
from infer_server.errors import ApiError
from infer_server.openai.generation_fields import GenerationFields, generation_params, most_tokens

MAX_PROMPTS = 2048
DEFAULT_MAX_TOKENS = 128

Prompt = str | list[str | int | list[int]]

# The decoder cannot express the type of a prompt exactly; these schemas do.
_TEXT = {"type": "string", "description": "Empty only where the tokenizer puts a beginning before each text."}
_TOKEN_IDS = {"type": "array", "items": {"type": "integer", "minimum": 0}, "minItems": 1}


class CompletionBody(GenerationFields, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The body of `POST /v1/completions`. A null is the same as leaving the field out."""

    prompt: Annotated[
        Prompt,
        described(
            f"Text, token ids, or a list of up to {MAX_PROMPTS:,} of either, each of which gets `n` choices.",
            oneOf=[
                _TEXT,
                {"type": "array", "items": _TEXT, "minItems": 1, "maxItems": MAX_PROMPTS},
                _TOKEN_IDS,
                {"type": "array", "items": _TOKEN_IDS, "minItems": 1, "maxItems": MAX_PROMPTS},
            ],
        ),
    ]
    max_tokens: Annotated[
        int | None,
        described(
            "Most tokens to generate; if left out 128, or fewer where the context leaves no more. -1: what the context "
            "leaves; 0 only reads the prompt, to score it with `echo` and `logprobs`.",
            minimum=-1,
        ),
    ] = None
    max_completion_tokens: Annotated[
        int | None, described("The same; of several limits the least counts.", minimum=-1)
    ] = None
    n_predict: Annotated[int | None, described("The same in llama.cpp's words.", minimum=-1)] = None
    add_special_tokens: Annotated[
        bool | None, described("False: a text does not get what the tokenizer puts around texts, such as a beginning.")
    ] = None
    echo: Annotated[bool | None, described("Begin each choice's text with the prompt.")] = None
    logprobs: Annotated[
        int | bool | None,
        described(
            "List the log-probability of each token and of this many most probable ones, true: of one; with `echo`, of "
            "the prompt's tokens too.",
            minimum=0,
            maximum=MAX_LOGPROBS,
        ),
    ] = None
    suffix: Annotated[
        str | None,
        described(
            "Fill in the text between each prompt, which is a text, and this; for models that were trained to. Not "
            "with `echo`."
        ),
    ] = None
    best_of: Annotated[int | None, described("Only the value of `n`: the choices made are those sent.")] = None

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
        raise too_many("prompt", len(prompts), "prompts", most=MAX_PROMPTS)
    check_foreign(body)
    n = 1 if (sent := getattr(body, "n", None)) is None else sent
    if body.best_of not in (None, n):
        raise unsupported("best_of", body.best_of, send=f"{n}, the value of `n`")
    if body.suffix:
        _check_suffix(body, prompts)
        prompts = [InfillPrompt(prefix=prompt, suffix=body.suffix) for prompt in prompts if isinstance(prompt, str)]
    logprobs = _logprobs(body)
    params = generation_params(
        body,
        max_tokens=most_tokens(body, left_out=DEFAULT_MAX_TOKENS),
        logprobs=logprobs,
        prompt_logprobs=logprobs if body.echo else None,
    )
    return [
        GenerateRequest(
            prompt=prompt,
            params=params,
            add_special_tokens=body.add_special_tokens is not False,
            priority=body.priority or 0,
            cache_salt=body.cache_salt,
            clip_max_tokens=not spellings_in(body, "max_tokens"),
        )
        for prompt in prompts
    ]


def _check_suffix(body: CompletionBody, prompts: Sequence[object]) -> None:
    if body.echo:
        raise unsupported("echo", body.echo, send="false with `suffix`")
    if not all(isinstance(prompt, str) for prompt in prompts):
        raise conflict("suffix", "`suffix` needs texts as `prompt`, not token ids; send texts, or leave it out.")


def _logprobs(body: CompletionBody) -> int | None:
    """Return how many of the most probable tokens to list: true asks for one, as elsewhere; false for nothing."""
    wanted = body.logprobs
    if isinstance(wanted, bool):
        return 1 if wanted else None
    check_range("logprobs", wanted, low=0, high=MAX_LOGPROBS)
    return wanted


def _check_prompt(prompt: Prompt) -> None:
    prompts: list[object] = [prompt]
    if isinstance(prompt, list):
        kinds = set(map(type, prompt))
        if len(kinds) > 1:
            raise _bad_prompt("`prompt` mixes strings, token ids and lists; send one kind.", code="invalid_type")
        prompts = [prompt] if kinds <= {int} else list(prompt)
    if any(each == [] for each in (prompt, *prompts)):
        raise _bad_prompt("`prompt` is empty, or one of its prompts is; send at least one token.", code="empty_prompt")


def _prompts(prompt: Prompt) -> list[str | list[int] | InfillPrompt]:
    """Return the prompts. `_check_prompt` has checked that they are of one kind and that none is empty."""
    several = isinstance(prompt, list) and not isinstance(prompt[0], int)
    return list(prompt) if several else [prompt]  # type: ignore[list-item,arg-type]  # `_check_prompt` leaves `str` or `list[int]`


def _bad_prompt(message: str, *, code: str) -> ApiError:
    return ApiError(400, message, code=code, param="prompt")
