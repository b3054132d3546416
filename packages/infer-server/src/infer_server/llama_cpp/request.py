"""The body of `POST /infill`, and the engine's request that it makes."""

from typing import Annotated, Any

import msgspec

from infer_engine.protocol import GenerateRequest, InfillPrompt
from infer_server.api.fields import described, restricted
from infer_server.api.foreign_fields import Ignored, OnlyNull, OnlyOff, OnlyOne, check_foreign
from infer_server.api.validation import check_model, check_range
from infer_server.openai.completions.request import DEFAULT_MAX_TOKENS
from infer_server.openai.generation_fields import GenerationFields, generation_params, most_tokens

_MOST = 2**31 - 1
_SAMPLERS = ["top_k", "top_p", "infill"]


class InfillFile(msgspec.Struct, frozen=True, kw_only=True):
    """A part of another file."""

    text: Annotated[str, described("Its text.")]
    filename: Annotated[str, described("Its name, where the model's format has a place for it.")] = "tmp"


class InfillBody(GenerationFields, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The body of `POST /infill`. A null is the same as leaving the field out."""

    input_prefix: Annotated[str, described("The text before the gap. Of one that is too long the end is kept.")]
    input_suffix: Annotated[str, described("The text after the gap. Of one that is too long the beginning is kept.")]
    input_extra: Annotated[list[InfillFile] | None, described("Parts of other files, the nearest last.")] = None
    prompt: Annotated[str | None, described("More of the text before the gap, such as the current line.")] = None
    n_predict: Annotated[
        int | None, described("Most tokens to generate; 128 if left out, -1: what the context leaves.", minimum=-1)
    ] = None
    max_tokens: Annotated[int | None, described("The same; of both the least counts.", minimum=-1)] = None
    n_indent: Annotated[
        int | None, described("End before a line that begins with fewer blanks or tabs.", minimum=0, maximum=_MOST)
    ] = None
    t_max_predict_ms: Annotated[
        int | None,
        described("End with the first line that is complete after this time; 0, -1: never.", minimum=-1, maximum=_MOST),
    ] = None
    response_fields: Annotated[
        list[str] | None, described("Answer with these fields alone, such as `content` and `timings/prompt_ms`.")
    ] = None

    n: OnlyOne = None
    stream_options: OnlyNull = None
    return_token_ids: OnlyOff = None
    t_max_prompt_ms: Ignored = None
    samplers: Annotated[
        Any,
        restricted(
            "Only llama.cpp's default, or what its plugins for editors send; its sampler `infill` does nothing.",
            allow=([], "", "edskypmxt", _SAMPLERS),
        ),
    ] = None


def infill_request(body: InfillBody, *, served_model: str) -> GenerateRequest:
    """Return the request of `body`.

    Raises:
        ApiError: 404 for a model that is not served, 400 for a feature that is not supported or a value out of range.
    """
    check_model(body.model, served_model=served_model)
    check_foreign(body)
    check_range("n_indent", body.n_indent, low=0, high=_MOST)
    check_range("t_max_predict_ms", body.t_max_predict_ms, low=-1, high=_MOST)
    max_tokens = most_tokens(body, left_out=DEFAULT_MAX_TOKENS)
    return GenerateRequest(
        prompt=InfillPrompt(
            prefix=body.input_prefix + (body.prompt or ""),
            suffix=body.input_suffix,
            files=tuple((file.filename, file.text) for file in body.input_extra or ()),
            cuts=True,
        ),
        params=generation_params(body, max_tokens=max_tokens, logprobs=None),
        add_special_tokens=getattr(body, "add_special_tokens", None) is not False,
        priority=body.priority or 0,
        cache_salt=body.cache_salt,
        clip_max_tokens=True,
    )
