"""The body of `POST /v1/chat/completions` and what it asks of the engine. Knows every field; knows no template.

Every field of OpenAI's own API is here: taken where it changes nothing, refused by name where it asks for what this
server does not do.
"""

from typing import Annotated, Any

from infer_engine.protocol import GenerateRequest
from infer_server.openai.conversations import MAX_MESSAGES, WholeMessage, chat_prompt
from infer_server.openai.refusals import Neutral, check_model, check_neutral, check_range, out_of_range
from infer_server.openai.sampling_fields import GenerationFields, described, sampling_params

MAX_TOP_LOGPROBS = 20


class ChatBody(GenerationFields, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The body of `POST /v1/chat/completions`. A null is the same as leaving the field out."""

    messages: Annotated[list[WholeMessage], described("The conversation so far.", minItems=1, maxItems=MAX_MESSAGES)]
    max_completion_tokens: Annotated[
        int | None, described("Most tokens to generate; if left out, what the context leaves.", minimum=1)
    ] = None
    max_tokens: Annotated[int | None, described("The older name of `max_completion_tokens`.", minimum=1)] = None
    logprobs: Annotated[bool | None, described("List the log-probability of each token.")] = None
    top_logprobs: Annotated[
        int | None,
        described("List this many most probable tokens too; needs `logprobs`.", minimum=0, maximum=MAX_TOP_LOGPROBS),
    ] = None
    response_format: Annotated[
        dict[str, Any] | None, described('Only {"type": "text"}.', enum=[None, {"type": "text"}])
    ] = None
    parallel_tool_calls: Annotated[bool | None, described("Taken, and without effect.")] = None
    prompt_cache_key: Annotated[str | None, described("Taken, and without effect.")] = None
    safety_identifier: Annotated[str | None, described("Taken, and without effect.")] = None
    audio: Annotated[Any, described("Only null.", enum=[None])] = None
    function_call: Annotated[Any, described("Only `none` or `auto`.", enum=[None, "none", "auto"])] = None
    functions: Annotated[Any, described("Only null or [].", enum=[None, []])] = None
    modalities: Annotated[list[str] | None, described('Only ["text"].', enum=[None, ["text"]])] = None
    moderation: Annotated[Any, described("Only null.", enum=[None])] = None
    prediction: Annotated[Any, described("Only null.", enum=[None])] = None
    prompt_cache_options: Annotated[Any, described("Only null.", enum=[None])] = None
    prompt_cache_retention: Annotated[
        str | None, described("Only `in_memory`.", enum=[None, "in_memory", "in-memory"])
    ] = None
    reasoning_effort: Annotated[str | None, described("Only `none`.", enum=[None, "none"])] = None
    service_tier: Annotated[str | None, described("Only `auto` or `default`.", enum=[None, "auto", "default"])] = None
    tool_choice: Annotated[Any, described("Only `none` or `auto`.", enum=[None, "none", "auto"])] = None
    tools: Annotated[Any, described("Only null or [].", enum=[None, []])] = None
    verbosity: Annotated[str | None, described("Only `medium`.", enum=[None, "medium"])] = None
    web_search_options: Annotated[Any, described("Only null.", enum=[None])] = None


_NEUTRAL: dict[str, Neutral] = {
    "response_format": (({"type": "text"},), '{"type": "text"}'),
    "audio": ((), "null"),
    "function_call": (("none", "auto"), "`none`"),
    "functions": (([],), "null"),
    "modalities": ((["text"],), '["text"]'),
    "moderation": ((), "null"),
    "prediction": ((), "null"),
    "prompt_cache_options": ((), "null"),
    "prompt_cache_retention": (("in_memory", "in-memory"), "`in_memory`"),
    "reasoning_effort": (("none",), "`none`"),
    "service_tier": (("auto", "default"), "`auto`"),
    "tool_choice": (("none", "auto"), "`none`"),
    "tools": (([],), "null"),
    "verbosity": (("medium",), "`medium`"),
    "web_search_options": ((), "null"),
}


def chat_request(body: ChatBody, *, served_model: str) -> GenerateRequest:
    """Return the request that `body` is.

    Raises:
        ApiError: 400 for messages that are no conversation of texts, a feature that is not supported and a value out
            of range; 404 for a model that is not served.
    """
    prompt = chat_prompt(body.messages, add_generation_prompt=True)
    check_model(body.model, served_model=served_model)
    check_neutral(body, _NEUTRAL)
    return GenerateRequest(
        prompt=prompt,
        params=sampling_params(body, max_tokens=_max_tokens(body), logprobs=_logprobs(body), prompt_logprobs=None),
        priority=body.priority or 0,
        cache_salt=body.cache_salt,
    )


def _max_tokens(body: ChatBody) -> int | None:
    asked, older = body.max_completion_tokens, body.max_tokens
    if asked is None:
        return older
    if older not in (None, asked):
        raise out_of_range(
            "max_tokens", f"`max_tokens` is {older} but `max_completion_tokens` is {asked}; send only the latter."
        )
    if asked < 1:
        raise out_of_range(
            "max_completion_tokens", f"`max_completion_tokens` is {asked}; it must be a whole number of at least 1."
        )
    return asked


def _logprobs(body: ChatBody) -> int | None:
    check_range("top_logprobs", body.top_logprobs, low=0, high=MAX_TOP_LOGPROBS)
    if body.logprobs:
        return body.top_logprobs or 0
    if body.top_logprobs:
        raise out_of_range("top_logprobs", f"`top_logprobs` is {body.top_logprobs}; send `logprobs` true with it.")
    return None
