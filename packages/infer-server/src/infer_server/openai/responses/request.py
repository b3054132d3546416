"""The body of `POST /v1/responses`, and the engine's request that it makes.

Unknown fields are ignored: clients of this API send fields that are newer than any server.
"""

from typing import Annotated, Any

import msgspec

from infer_engine.protocol import ChatPrompt, GenerateRequest
from infer_server.api.fields import described, restricted
from infer_server.api.foreign_fields import check_foreign
from infer_server.api.sampling_fields import SamplingFields, sampling_params
from infer_server.api.shared_fields import (
    ChatTemplateKwargs,
    ParallelToolCalls,
    ReasoningEffort,
    ReturnTokenIds,
    ThinkingTokenBudget,
)
from infer_server.api.thinking import budget_of, checked_effort, template_kwargs_of
from infer_server.api.validation import check_model, out_of_range
from infer_server.errors import ApiError
from infer_server.openai.responses.input_items import INPUT, conversation_of
from infer_server.openai.responses.text_format import TextField, structured_outputs
from infer_server.openai.responses.tool_fields import TOOLS, tool_settings
from infer_server.openai.tool_choice import TOOL_CHOICE

_NO_EFFECT = described("Accepted without effect.")
_NO_STATE = described("Only null: the server keeps no responses.", enum=[None])
_STATEFUL_FIELDS = ("previous_response_id", "conversation")


class ReasoningField(msgspec.Struct, frozen=True, kw_only=True):
    """How much the model thinks."""

    effort: ReasoningEffort = None
    summary: Annotated[Any, described("Accepted without effect: the whole reasoning is in the answer.")] = None


class ResponsesBody(SamplingFields, frozen=True, kw_only=True):
    """The body of `POST /v1/responses`. A null is the same as leaving the field out; unknown fields are ignored."""

    input: Annotated[str | list[dict[str, Any]], INPUT]
    instructions: Annotated[str | None, described("A system message before the input.")] = None
    tools: Annotated[list[dict[str, Any]] | None, TOOLS] = None
    tool_choice: Annotated[str | dict[str, Any] | None, TOOL_CHOICE] = None
    parallel_tool_calls: ParallelToolCalls = None
    text: Annotated[TextField | None, described("What the text looks like.")] = None
    reasoning: Annotated[ReasoningField | None, described("How much the model thinks.")] = None
    max_output_tokens: Annotated[
        int | None,
        described("Most tokens to generate; at most what the context leaves.", minimum=1),
    ] = None
    return_token_ids: ReturnTokenIds = None
    thinking_token_budget: ThinkingTokenBudget = None
    chat_template_kwargs: ChatTemplateKwargs = None
    metadata: Annotated[dict[str, str] | None, described("Comes back with the response.")] = None
    truncation: Annotated[
        str | None,
        restricted(
            "Accepted without effect: an input that is too long is refused, never truncated.",
            allow=("auto", "disabled"),
            send="`disabled`",
        ),
    ] = None
    previous_response_id: Annotated[Any, _NO_STATE] = None
    conversation: Annotated[Any, _NO_STATE] = None
    background: Annotated[
        bool | None, restricted("Only false: the answer comes with the reply.", allow=(False,), send="false")
    ] = None
    prompt: Annotated[Any, restricted("Only null: the server keeps no prompt templates.")] = None
    top_logprobs: Annotated[int | None, restricted("Only 0.", allow=(0,), send="0")] = None
    stream_options: Annotated[Any, _NO_EFFECT] = None
    include: Annotated[Any, _NO_EFFECT] = None
    max_tool_calls: Annotated[Any, described("Accepted without effect: it limits calls of OpenAI's own tools.")] = None
    context_management: Annotated[Any, _NO_EFFECT] = None
    moderation: Annotated[Any, _NO_EFFECT] = None
    access_programs: Annotated[Any, _NO_EFFECT] = None
    image: Annotated[Any, _NO_EFFECT] = None


def responses_request(body: ResponsesBody, *, served_model: str) -> GenerateRequest:
    """Return the engine's request for `body`.

    Raises:
        ApiError: 400 for an input that is not all text, wrong tools, a feature that is not supported, or a value out
            of range; 404 for a model that is not served.
    """
    _check_stateless(body)
    effort = body.reasoning.effort if body.reasoning else None
    prompt = ChatPrompt(
        messages=conversation_of(body.input, instructions=body.instructions),
        **tool_settings(body.tools, body.tool_choice, parallel=body.parallel_tool_calls),
        template_kwargs=template_kwargs_of(checked_effort(effort, name="reasoning.effort"), body.chat_template_kwargs),
    )
    check_model(body.model, served_model=served_model)
    check_foreign(body)
    wanted = structured_outputs(body.text)
    most = body.max_output_tokens
    if most is not None and most < 1:
        raise out_of_range(
            "max_output_tokens", f"`max_output_tokens` is {most}; it must be a whole number of at least 1."
        )
    params = sampling_params(
        body,
        names={"max_tokens": "max_output_tokens"},
        max_tokens=most,
        structured_outputs=wanted,
        thinking_token_budget=budget_of({"thinking_token_budget": body.thinking_token_budget}),
    )
    return GenerateRequest(prompt=prompt, params=params, clip_max_tokens=True)


def _check_stateless(body: ResponsesBody) -> None:
    for name in _STATEFUL_FIELDS:
        if getattr(body, name) is not None:
            raise ApiError(
                400,
                f"`{name}` is not supported: the server keeps no state. Leave it out, and send the whole conversation "
                "as `input`.",
                code="unsupported_value",
                param=name,
            )
