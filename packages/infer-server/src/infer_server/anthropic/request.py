"""The bodies of `/v1/messages` and `/v1/messages/count_tokens`, and the engine's request that they make.

Unknown fields are ignored everywhere: clients of this API send new ones before servers know them.
"""

from typing import Annotated, Any

import msgspec

from infer_engine.protocol import ChatPrompt, GenerateRequest, StructuredOutputs, Tool
from infer_engine.protocol.chat import ToolChoice
from infer_engine.protocol.sampling import MAX_STOP_CHARACTERS, MAX_STOP_STRINGS
from infer_server.anthropic.content import MessageField, SystemField, check_continued, conversation_of
from infer_server.api.fields import check_restricted, described, restricted
from infer_server.api.foreign_fields import ForeignFields, check_foreign
from infer_server.api.sampling_fields import sampling_params, with_sampling_fields
from infer_server.api.shared_fields import ModelId, ReturnTokenIds, ThinkingTokenBudget
from infer_server.api.thinking import MAX_EFFORT_CHARACTERS, budget_of, checked_effort
from infer_server.api.tools import TOOL_NAME_PATTERN, check_forced_tool, check_tools
from infer_server.api.validation import check_model, conflict, unsupported, wrong_value
from infer_server.errors import missing, shorten

_CHOICES: dict[str, ToolChoice] = {"auto": "auto", "any": "required", "tool": "required", "none": "none"}
_THINKING = {"enabled": True, "adaptive": True, "disabled": False}


class ToolField(msgspec.Struct, frozen=True, kw_only=True):
    """A tool. Those of other types than `custom` are known to a provider's models or servers, and are dropped."""

    name: Annotated[
        str | None, described("Of letters, digits, `_`, `-` and `.`; required.", pattern=TOOL_NAME_PATTERN)
    ] = None
    type: Annotated[str | None, described("`custom`, or left out; tools of other types are dropped.")] = None
    description: Annotated[str | None, described("What it does, for the model to read.")] = None
    input_schema: Annotated[dict[str, Any] | None, described("A JSON Schema of the object of its arguments.")] = None
    strict: Annotated[bool | None, described("Refuse a schema that cannot be kept in full.")] = None


class ToolChoiceField(msgspec.Struct, frozen=True, kw_only=True):
    """Whether tools are called."""

    type: Annotated[str, described("What the model may do.", enum=list(_CHOICES))]
    name: Annotated[str | None, described("The tool to call, with the type `tool`.")] = None
    disable_parallel_tool_use: Annotated[bool | None, described("At most one call.")] = None


class ThinkingField(msgspec.Struct, frozen=True, kw_only=True):
    """Whether the model thinks before it answers."""

    type: Annotated[str, described("Other words are taken as `enabled`.", examples=list(_THINKING))]
    budget_tokens: ThinkingTokenBudget = None
    display: Annotated[
        str | None, described("`omitted`: only its signature is in the answer, which carries it to the next request.")
    ] = None


class OutputFormat(msgspec.Struct, frozen=True, kw_only=True):
    """The form of the text."""

    type: Annotated[str, described("Only `json_schema`.", enum=["json_schema"])]
    schema: Annotated[dict[str, Any] | None, described("A JSON Schema; required.", type="object")] = None


class OutputConfig(msgspec.Struct, frozen=True, kw_only=True):
    """The way in which the model answers."""

    format: OutputFormat | None = None
    effort: Annotated[
        str | None, described("The template's `reasoning_effort`.", minLength=1, maxLength=MAX_EFFORT_CHARACTERS)
    ] = None


class CountTokensBody(ForeignFields, frozen=True, kw_only=True):
    """The body of `POST /v1/messages/count_tokens`: what makes the prompt."""

    messages: Annotated[list[MessageField], described("The conversation so far.", minItems=1)]
    model: ModelId = None
    system: Annotated[SystemField, described("What the system says: text, or blocks of text.")] = None
    tools: Annotated[list[ToolField] | None, described("What the model may call.")] = None
    tool_choice: Annotated[ToolChoiceField | None, described("Whether tools are called.")] = None
    thinking: Annotated[ThinkingField | None, described("Whether the model thinks before it answers.")] = None
    thinking_token_budget: ThinkingTokenBudget = None
    output_config: Annotated[OutputConfig | None, described("How the model answers.")] = None
    mcp_servers: Annotated[
        Any, restricted("Only null or []: the server calls no others.", allow=([],), send="`tools`")
    ] = None


@with_sampling_fields("messages")
class MessagesBody(CountTokensBody, frozen=True, kw_only=True):
    """The body of `POST /v1/messages`."""

    max_tokens: Annotated[int, described("Most tokens to generate; at most what the context leaves.", minimum=-1)]
    stop_sequences: Annotated[
        list[Annotated[str, described("A text.", maxLength=MAX_STOP_CHARACTERS)]] | None,
        described("Texts that end the answer and are never part of it.", maxItems=MAX_STOP_STRINGS),
    ] = None
    stream: Annotated[bool | None, described("Send events as tokens are made.")] = None
    return_token_ids: ReturnTokenIds = None
    output_format: Annotated[OutputFormat | None, described("An older place of `output_config.format`.")] = None


def messages_request(body: MessagesBody, *, served_model: str) -> GenerateRequest:
    """Return the engine's request for `body`.

    Raises:
        ApiError: 400: a value that is wrong, or a block that is not supported; 404: a model that is not served.
    """
    prompt = prompt_of(body, served_model=served_model)
    check_foreign(body)
    params = sampling_params(
        body,
        names={"stop": "stop_sequences"},
        max_tokens=body.max_tokens,
        stop=tuple(body.stop_sequences or ()),
        structured_outputs=_structured_outputs(body),
        thinking_token_budget=budget_of(body),
    )
    return GenerateRequest(prompt=prompt, params=params, clip_max_tokens=True)


def prompt_of(body: CountTokensBody, *, served_model: str) -> ChatPrompt:
    """Return the prompt for `body`. A last message of the assistant is continued.

    Raises:
        ApiError: 400: a value that is wrong, or a block that is not supported; 404: a model that is not served.
    """
    check_model(body.model, served_model=served_model)
    check_restricted(body)
    messages = conversation_of(body.system, body.messages)
    continues = body.messages[-1].role == "assistant"
    if continues:
        check_continued(body.messages)
    tools = _tools(body.tools or [])
    choice = body.tool_choice or ToolChoiceField(type="auto")
    if body.tools and not tools and choice.type != "none":
        raise unsupported("tools[0].type", body.tools[0].type, send="tools of your own")
    if choice.type not in _CHOICES:
        raise wrong_value(
            "tool_choice", f"`tool_choice.type` is {shorten(choice.type, 40)!r}; send one of {', '.join(_CHOICES)}."
        )
    if choice.type == "tool":
        check_forced_tool(choice.name or "", tools, param="tool_choice.name")
    if choice.type == "any" and not tools:
        raise conflict("tool_choice", "`tool_choice` is `any`, but there are no `tools`; send some.")
    return ChatPrompt(
        messages=messages,
        add_generation_prompt=not continues,
        continue_final_message=continues,
        tools=tools,
        tool_choice=_CHOICES[choice.type],
        tool_name=choice.name if choice.type == "tool" else None,
        parallel_tool_calls=not choice.disable_parallel_tool_use,
        template_kwargs=_template_kwargs(body),
    )


def format_of(body: MessagesBody) -> tuple[str, OutputFormat | None]:
    """Return the name of the field that says what the text looks like, and its value; "" and None without one."""
    if body.output_config is not None and body.output_config.format is not None:
        return "output_config.format", body.output_config.format
    return ("output_format", body.output_format) if body.output_format else ("", None)


def shows_thinking(body: MessagesBody) -> bool:
    """Return whether the answer has the text of its thinking, and not only its signature."""
    return body.thinking is None or body.thinking.display != "omitted"


def _template_kwargs(body: CountTokensBody) -> dict[str, Any]:
    """Return what the template is told of thinking. An effort does not switch it on: it is one of the whole answer."""
    variables: dict[str, Any] = {}
    if body.thinking is not None:
        variables["enable_thinking"] = _THINKING.get(body.thinking.type, True)
    given = body.output_config.effort if body.output_config else None
    effort = checked_effort(given, name="output_config.effort", words="`low` or `high`")
    return variables if effort is None else {**variables, "reasoning_effort": effort}


def _tools(fields: list[ToolField]) -> tuple[Tool, ...]:
    own = [(f"tools[{index}]", tool) for index, tool in enumerate(fields) if tool.type in (None, "custom")]
    read = []
    for place, tool in own:
        if tool.name is None:
            raise missing(f"{place}.name")
        schema = tool.input_schema or {}
        read.append(Tool(name=tool.name, description=tool.description, parameters=schema, strict=bool(tool.strict)))
    check_tools(read, places=[place for place, _ in own])
    return tuple(read)


def _structured_outputs(body: MessagesBody) -> StructuredOutputs | None:
    place, wanted = format_of(body)
    if wanted is None:
        return None
    if wanted.type != "json_schema" or wanted.schema is None:
        raise wrong_value(place, f"`{place}` must be of type `json_schema` and have a `schema`; send both.")
    return StructuredOutputs(json=wanted.schema)
