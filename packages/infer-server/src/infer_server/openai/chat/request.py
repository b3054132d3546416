"""The body of `POST /v1/chat/completions`, and the engine's request that it makes.

Every field of OpenAI's own API is here. Fields that this server does not support are restricted to the values with
which they have no effect.
"""

from typing import Annotated, Any

from infer_engine.protocol import GenerateRequest
from infer_server.generation.thinking import MAX_EFFORT_CHARACTERS, template_kwargs_of
from infer_server.openai.chat.messages import MAX_MESSAGES, DocumentedMessage, chat_prompt
from infer_server.openai.chat.tool_fields import TOOLS, tool_settings
from infer_server.openai.fields import check_restricted, described, restricted
from infer_server.openai.generation_fields import GenerationFields, sampling_params
from infer_server.openai.shared_fields import (
    AddGenerationPrompt,
    ChatTemplateKwargs,
    ContinueFinalMessage,
    ParallelToolCalls,
    ReasoningEffort,
)
from infer_server.openai.structured_outputs import ResponseFormat
from infer_server.openai.tool_choice import TOOL_CHOICE
from infer_server.openai.validation import check_model, check_range, out_of_range

MAX_TOP_LOGPROBS = 20


class ChatBody(GenerationFields, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The body of `POST /v1/chat/completions`. A null is the same as leaving the field out."""

    messages: Annotated[
        list[DocumentedMessage], described("The conversation so far.", minItems=1, maxItems=MAX_MESSAGES)
    ]
    max_completion_tokens: Annotated[
        int | None, described("Most tokens to generate; if left out, what the context leaves.", minimum=1)
    ] = None
    max_tokens: Annotated[int | None, described("The older name of `max_completion_tokens`.", minimum=1)] = None
    logprobs: Annotated[bool | None, described("List the log-probability of each token.")] = None
    top_logprobs: Annotated[
        int | None,
        described("List this many most probable tokens too; needs `logprobs`.", minimum=0, maximum=MAX_TOP_LOGPROBS),
    ] = None
    response_format: Annotated[ResponseFormat | None, described("What the text looks like.")] = None
    tools: Annotated[list[dict[str, Any]] | None, TOOLS] = None
    tool_choice: Annotated[str | dict[str, Any] | None, TOOL_CHOICE] = None
    parallel_tool_calls: ParallelToolCalls = None
    reasoning_effort: ReasoningEffort = None
    chat_template_kwargs: ChatTemplateKwargs = None
    add_generation_prompt: AddGenerationPrompt = None
    continue_final_message: ContinueFinalMessage = None
    prompt_cache_key: Annotated[str | None, described("Accepted without effect.")] = None
    safety_identifier: Annotated[str | None, described("Accepted without effect.")] = None
    audio: Annotated[Any, restricted("Only null.")] = None
    function_call: Annotated[Any, restricted("Only `none` or `auto`.", allow=("none", "auto"), send="`none`")] = None
    functions: Annotated[Any, restricted("Only null or [].", allow=([],), send="`tools`")] = None
    modalities: Annotated[list[str] | None, restricted('Only ["text"].', allow=(["text"],), send='["text"]')] = None
    moderation: Annotated[Any, restricted("Only null.")] = None
    prediction: Annotated[Any, restricted("Only null.")] = None
    prompt_cache_options: Annotated[Any, restricted("Only null.")] = None
    prompt_cache_retention: Annotated[
        str | None, restricted("Only `in_memory`.", allow=("in_memory", "in-memory"), send="`in_memory`")
    ] = None
    service_tier: Annotated[
        str | None, restricted("Only `auto` or `default`.", allow=("auto", "default"), send="`auto`")
    ] = None
    verbosity: Annotated[str | None, restricted("Only `medium`.", allow=("medium",), send="`medium`")] = None
    web_search_options: Annotated[Any, restricted("Only null.")] = None


def chat_request(body: ChatBody, *, served_model: str) -> GenerateRequest:
    """Return the engine's request for `body`.

    Raises:
        ApiError: 400 for messages that are not all text, wrong tools, a feature that is not supported, or a value out
            of range; 404 for a model that is not served.
    """
    prompt = chat_prompt(
        body.messages,
        add_generation_prompt=body.add_generation_prompt,
        continue_final_message=body.continue_final_message,
        **tool_settings(body.tools, body.tool_choice, parallel=body.parallel_tool_calls),
        template_kwargs=template_kwargs_of(_effort(body), body.chat_template_kwargs),
    )
    check_model(body.model, served_model=served_model)
    check_restricted(body)
    return GenerateRequest(
        prompt=prompt,
        params=sampling_params(
            body,
            max_tokens=_max_tokens(body),
            logprobs=_logprobs(body),
            prompt_logprobs=None,
            response_format=body.response_format,
        ),
        priority=body.priority or 0,
        cache_salt=body.cache_salt,
    )


def _effort(body: ChatBody) -> str | None:
    effort = body.reasoning_effort
    if effort is not None and not 1 <= len(effort) <= MAX_EFFORT_CHARACTERS:
        raise out_of_range(
            "reasoning_effort", f"`reasoning_effort` has {len(effort)} characters; send a word such as `low` or `none`."
        )
    return effort


def _max_tokens(body: ChatBody) -> int | None:
    wanted, older = body.max_completion_tokens, body.max_tokens
    if wanted is None:
        return older
    if older not in (None, wanted):
        raise out_of_range(
            "max_tokens", f"`max_tokens` is {older} but `max_completion_tokens` is {wanted}; send only the latter."
        )
    if wanted < 1:
        raise out_of_range(
            "max_completion_tokens", f"`max_completion_tokens` is {wanted}; it must be a whole number of at least 1."
        )
    return wanted


def _logprobs(body: ChatBody) -> int | None:
    check_range("top_logprobs", body.top_logprobs, low=0, high=MAX_TOP_LOGPROBS)
    if body.logprobs:
        return body.top_logprobs or 0
    if body.top_logprobs:
        raise out_of_range("top_logprobs", f"`top_logprobs` is {body.top_logprobs}; send `logprobs` true with it.")
    return None
