"""The body of `POST /v1/responses`, and the engine's request that it makes.

Unknown fields are ignored: clients of this API send fields that are newer than any server.
"""

from typing import Annotated, Any

import msgspec

from infer_engine.protocol import ChatPrompt, GenerateRequest
from infer_server.api.fields import described, restricted
from infer_server.api.foreign_fields import check_foreign
from infer_server.api.sampling_fields import SamplingFields, sampling_params, with_sampling_fields
from infer_server.api.shared_fields import (
    ChatTemplateKwargs,
    ParallelToolCalls,
    ReasoningEffort,
    ReturnTokenIds,
    ThinkingTokenBudget,
)
from infer_server.api.thinking import budget_of, checked_effort, template_kwargs_of
from infer_server.api.validation import check_model, wrong_value
from infer_server.errors import missing
from infer_server.openai.responses.input_items import INPUT, conversation_of
from infer_server.openai.responses.text_format import TextField, structured_outputs
from infer_server.openai.responses.tool_fields import TOOLS, tool_settings
from infer_server.openai.tool_choice import TOOL_CHOICE

ENCRYPTED_REASONING = "reasoning.encrypted_content"

_NO_EFFECT = described("Accepted without effect.")
_SUMMARY = "Any word but `none`: the reasoning comes as its summary, in full."


class ReasoningField(msgspec.Struct, frozen=True, kw_only=True):
    """The amount of thinking."""

    effort: ReasoningEffort = None
    summary: Annotated[str | None, described(_SUMMARY, examples=["auto", "concise", "detailed"])] = None
    generate_summary: Annotated[str | None, described("An older name of `summary`.")] = None


@with_sampling_fields("responses")
class ResponsesBody(SamplingFields, frozen=True, kw_only=True):
    """The body of `POST /v1/responses`. A null is the same as leaving the field out; unknown fields are ignored."""

    input: Annotated[str | list[dict[str, Any]] | None, INPUT] = None
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
    previous_response_id: Annotated[
        str | None, described("A recent response, whose conversation comes before the input.")
    ] = None
    store: Annotated[bool | None, described("False: neither the response nor its items can be referred to.")] = None
    conversation: Annotated[
        Any, restricted("Only null: the server keeps no conversations.", send="the whole conversation as `input`")
    ] = None
    background: Annotated[
        bool | None, restricted("Only false: the answer comes with the reply.", allow=(False,), send="false")
    ] = None
    prompt: Annotated[Any, restricted("Only null: the server keeps no prompt templates.")] = None
    top_logprobs: Annotated[int | None, restricted("Only 0.", allow=(0,), send="0")] = None
    stream_options: Annotated[Any, _NO_EFFECT] = None
    include: Annotated[
        list[str] | None,
        described(f"`{ENCRYPTED_REASONING}`: what carries the reasoning to the next request. Others have no effect."),
    ] = None
    max_tool_calls: Annotated[Any, described("Accepted without effect: it limits calls of OpenAI's own tools.")] = None
    context_management: Annotated[Any, _NO_EFFECT] = None
    moderation: Annotated[Any, _NO_EFFECT] = None
    access_programs: Annotated[Any, _NO_EFFECT] = None
    image: Annotated[Any, _NO_EFFECT] = None

    @property
    def summary(self) -> str | None:
        """The kind of summary that the answer shall have of its reasoning; None: none."""
        wanted = self.reasoning and (self.reasoning.summary or self.reasoning.generate_summary)
        return None if wanted == "none" else wanted or None

    @property
    def carries_reasoning(self) -> bool:
        """Whether the reasoning comes encrypted too, as clients need it that keep their conversations themselves."""
        return self.store is False or ENCRYPTED_REASONING in (self.include or ())


class ResolvedBody(ResponsesBody, frozen=True, kw_only=True):
    """A body without references: they are items, and `earlier` has those before its input."""

    earlier: tuple[dict[str, Any], ...] = ()

    @property
    def items(self) -> list[dict[str, Any]]:
        """The input as items."""
        return [{"role": "user", "content": self.input}] if isinstance(self.input, str) else self.input or []


def prompt_of(body: ResolvedBody, *, served_model: str) -> ChatPrompt:
    """Return the prompt for `body`.

    Raises:
        ApiError: 400 for an input that is missing or not all text, or wrong tools; 404 for a model that is not served.
    """
    if body.input is None and not body.earlier:
        raise missing("input")
    effort = body.reasoning.effort if body.reasoning else None
    prompt = ChatPrompt(
        messages=conversation_of(body.items, instructions=body.instructions, earlier=body.earlier),
        **tool_settings(body.tools, body.tool_choice, parallel=body.parallel_tool_calls),
        template_kwargs=template_kwargs_of(checked_effort(effort, name="reasoning.effort"), body.chat_template_kwargs),
    )
    check_model(body.model, served_model=served_model)
    check_foreign(body)
    return prompt


def responses_request(body: ResolvedBody, *, served_model: str) -> GenerateRequest:
    """Return the engine's request for `body`.

    Raises:
        ApiError: 400 for an input that is not all text, wrong tools, a feature that is not supported, or a value out
            of range; 404 for a model that is not served.
    """
    prompt = prompt_of(body, served_model=served_model)
    wanted = structured_outputs(body.text)
    most = body.max_output_tokens
    if most is not None and most < 1:
        message = f"`max_output_tokens` is {most}; it must be a whole number of at least 1."
        raise wrong_value("max_output_tokens", message, code="integer_below_min_value")
    params = sampling_params(
        body,
        names={"max_tokens": "max_output_tokens"},
        max_tokens=most,
        structured_outputs=wanted,
        thinking_token_budget=budget_of(body),
    )
    return GenerateRequest(prompt=prompt, params=params, clip_max_tokens=True)
