"""The body of `POST /v1/chat/completions`, and the engine's request that it makes.

Fields of OpenAI's own API that this server does not support, and those of other servers, are in the table of
`infer_server.api.foreign_fields`.
"""

from typing import Annotated, Any

import msgspec

from infer_engine.protocol import GenerateRequest
from infer_server.api.fields import check_restricted, described, restricted, spellings_in
from infer_server.api.foreign_fields import check_foreign
from infer_server.api.shared_fields import (
    AddGenerationPrompt,
    ChatTemplateKwargs,
    ContinueFinalMessage,
    Documents,
    ParallelToolCalls,
    ReasoningEffort,
    ThinkingTokenBudget,
)
from infer_server.api.thinking import budget_of, checked_effort, template_kwargs_of
from infer_server.api.validation import check_model, check_range, conflict, wrong_value
from infer_server.openai.chat.messages import DocumentedMessage, chat_prompt, with_documents
from infer_server.openai.chat.tool_fields import (
    FUNCTION_CALL,
    FUNCTION_CHOICES,
    FUNCTIONS,
    TOOLS,
    function_settings,
    tool_settings,
)
from infer_server.openai.content_parts import Content, read_content
from infer_server.openai.generation_fields import GenerationFields, generation_params, most_tokens
from infer_server.openai.tool_choice import TOOL_CHOICE, ToolSettings

MAX_TOP_LOGPROBS = 20


class ReasoningSwitch(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The amount of thinking."""

    effort: ReasoningEffort = None
    enabled: Annotated[bool | None, described("Whether it thinks.")] = None
    exclude: Annotated[bool | None, restricted("Only false.", allow=(False,), send="false")] = None
    max_tokens: ThinkingTokenBudget = None
    summary: Annotated[Any, described("Accepted without effect: the whole reasoning is in the answer.")] = None


class ThinkingSwitch(msgspec.Struct, frozen=True, kw_only=True):
    """Whether the model thinks."""

    type: Annotated[str, described("`disabled`; other words are taken as `enabled`.", examples=["enabled", "disabled"])]
    budget_tokens: ThinkingTokenBudget = None


class Prediction(msgspec.Struct, frozen=True, kw_only=True):
    """A text of which much is expected to be in the answer, which then comes sooner; it changes no token."""

    type: Annotated[str, described("`content`.", examples=["content"])] = "content"
    content: Annotated[Content, described("The text, or parts of it.")] = None


class ChatBody(GenerationFields, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The body of `POST /v1/chat/completions`. A null is the same as leaving the field out."""

    messages: Annotated[list[DocumentedMessage], described("The conversation so far.", minItems=1)]
    max_completion_tokens: Annotated[
        int | None, described("Most tokens to generate; if left out, or -1, what the context leaves.", minimum=-1)
    ] = None
    max_tokens: Annotated[
        int | None,
        described("The older name of `max_completion_tokens`; the least of several limits counts.", minimum=-1),
    ] = None
    n_predict: Annotated[int | None, described("The same in llama.cpp's words.", minimum=-1)] = None
    logprobs: Annotated[
        bool | int | None, described("List the log-probability of each token; 1 is true.", minimum=0, maximum=1)
    ] = None
    top_logprobs: Annotated[
        int | None,
        described("List this many most probable tokens too; needs `logprobs`.", minimum=0, maximum=MAX_TOP_LOGPROBS),
    ] = None
    tools: Annotated[list[dict[str, Any]] | None, TOOLS] = None
    tool_choice: Annotated[str | dict[str, Any] | None, TOOL_CHOICE] = None
    parallel_tool_calls: ParallelToolCalls = None
    reasoning_effort: ReasoningEffort = None
    reasoning: Annotated[ReasoningSwitch | None, described("How much the model thinks, in OpenRouter's words.")] = None
    thinking: Annotated[ThinkingSwitch | None, described("Whether the model thinks, in the words of GLM's API.")] = None
    enable_thinking: Annotated[bool | None, described("Whether the model thinks, as templates call it.")] = None
    thinking_token_budget: ThinkingTokenBudget = None
    thinking_budget: Annotated[ThinkingTokenBudget, described("The same in the words of Qwen's API.")] = None
    reasoning_budget: Annotated[ThinkingTokenBudget, described("The same in llama.cpp's words.")] = None
    chat_template_kwargs: ChatTemplateKwargs = None
    documents: Documents = None
    add_generation_prompt: AddGenerationPrompt = None
    continue_final_message: ContinueFinalMessage = None
    prediction: Prediction | None = None
    functions: Annotated[list[dict[str, Any]] | None, FUNCTIONS] = None
    function_call: Annotated[str | dict[str, Any] | None, FUNCTION_CALL] = None


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
        **_tool_settings(body),
        template_kwargs=_template_kwargs(body),
    )
    check_model(body.model, served_model=served_model)
    check_foreign(body)
    if body.reasoning is not None:
        check_restricted(body.reasoning, prefix="reasoning.")
    params = generation_params(
        body, max_tokens=_max_tokens(body), logprobs=_logprobs(body), thinking_token_budget=budget_of(body)
    )
    return GenerateRequest(
        prompt=prompt,
        params=params,
        priority=body.priority or 0,
        cache_salt=body.cache_salt,
        prediction=_prediction(body.prediction),
        clip_max_tokens=not params.ignore_eos,  # beside it `max_tokens` is no limit, but how many tokens are wanted
    )


def _tool_settings(body: ChatBody) -> ToolSettings:
    if body.functions and body.tools:
        raise conflict("functions", "`functions` and `tools` are both given; send `tools` alone.")
    if body.functions and body.tool_choice is not None:
        raise conflict("tool_choice", "`tool_choice` is for `tools`; send `function_call` with `functions`.")
    if body.tools and body.function_call not in (None, *FUNCTION_CHOICES):
        raise conflict("function_call", "`function_call` is for `functions`; send `tool_choice` with `tools`.")
    if body.functions or body.function_call not in (None, *FUNCTION_CHOICES):
        return function_settings(body.functions or [], body.function_call)
    return tool_settings(body.tools, body.tool_choice, parallel=body.parallel_tool_calls)


def _prediction(prediction: Prediction | None) -> str | None:
    if prediction is None:
        return None
    return read_content(prediction.content, "prediction.content").text or None


def _effort(body: ChatBody) -> str | None:
    """Return the effort that one of the fields about thinking asks for; OpenAI's own comes first."""
    if body.reasoning_effort is None and body.reasoning is not None:
        return checked_effort(body.reasoning.effort, name="reasoning.effort")
    return checked_effort(body.reasoning_effort, name="reasoning_effort")


def _template_kwargs(body: ChatBody) -> dict[str, Any]:
    """Return the variables of the template; those that the client names itself win."""
    switches = (
        body.enable_thinking,
        None if body.reasoning is None else body.reasoning.enabled,
        None if body.thinking is None else body.thinking.type != "disabled",
    )
    switch = next((value for value in switches if value is not None), None)
    given = {} if switch is None else {"enable_thinking": switch}
    kwargs = with_documents(body.chat_template_kwargs or {}, body.documents)
    return template_kwargs_of(_effort(body), given | kwargs)


def _max_tokens(body: ChatBody) -> int | None:
    for name, value in spellings_in(body, "max_tokens").items():
        if value == 0:  # some clients mean no limit by it, and others no answer
            message = f"`{name}` is 0; it must be a whole number of at least 1, or -1 for no limit."
            raise wrong_value(name, message, code="integer_below_min_value")
    return most_tokens(body)


def _logprobs(body: ChatBody) -> int | None:
    check_range("top_logprobs", body.top_logprobs, low=0, high=MAX_TOP_LOGPROBS)
    if body.logprobs not in (None, False, True):
        raise wrong_value(
            "logprobs", f"`logprobs` is {body.logprobs}; send true, and how many tokens to list as `top_logprobs`."
        )
    if body.logprobs:
        return body.top_logprobs or 0
    if body.top_logprobs:
        raise conflict("top_logprobs", f"`top_logprobs` is {body.top_logprobs}; send `logprobs` true with it.")
    return None
