"""The body of `POST /v1/responses`, and the engine's request that it makes.

Unknown fields are ignored: agents send new ones before servers know them.
"""

from typing import Annotated, Any

import msgspec

from infer_engine.protocol import ChatPrompt, GenerateRequest, SamplingParams, StructuredOutputs, Tool
from infer_engine.protocol.chat import ToolChoice
from infer_server.errors import shorten
from infer_server.generation.thinking import template_kwargs_of
from infer_server.generation.tools import check_forced_tool, check_results, check_tools
from infer_server.openai.fields import check_restricted, described, restricted
from infer_server.openai.responses.input_items import MAX_ITEMS, InputItem, conversation_of
from infer_server.openai.validation import check_model, out_of_range

_STATELESS = "the whole conversation as `input`: nothing is stored here"
_FORMATS = ("text", "json_object", "json_schema")


class FunctionTool(msgspec.Struct, frozen=True, kw_only=True):
    """A function that the model may call. Tools of other types run on a provider's servers, and are dropped."""

    type: Annotated[str, described("`function`; tools of other types are dropped.")]
    name: Annotated[str | None, described("Of letters, digits, `_`, `-` and `.`.")] = None
    description: Annotated[str | None, described("What it does, for the model to read.")] = None
    parameters: Annotated[dict[str, Any] | None, described("A JSON Schema of the object of its arguments.")] = None
    strict: Annotated[bool | None, described("Refuse a schema that cannot be kept in full.")] = None


class ToolChoiceField(msgspec.Struct, frozen=True, kw_only=True):
    """A function that must be called, or the functions that may be."""

    type: Annotated[str, described("`function` or `allowed_tools`.")]
    name: Annotated[str | None, described("The function to call.")] = None
    mode: Annotated[str | None, described("Of allowed tools: `auto` or `required`.")] = None
    tools: Annotated[list[FunctionTool] | None, described("The allowed tools.")] = None


class TextFormat(msgspec.Struct, frozen=True, kw_only=True):
    """What the text looks like."""

    type: Annotated[str, described("Any text, a JSON object, or JSON that matches a schema.", enum=list(_FORMATS))]
    schema: Annotated[dict[str, Any] | None, described("The schema of the type `json_schema`.")] = None
    name: Annotated[str | None, described("Accepted without effect.")] = None
    strict: Annotated[bool | None, described("Accepted without effect: the schema is always kept.")] = None


class TextField(msgspec.Struct, frozen=True, kw_only=True):
    """How the text looks."""

    format: TextFormat | None = None
    verbosity: Annotated[str | None, described("Accepted without effect.")] = None


class ReasoningField(msgspec.Struct, frozen=True, kw_only=True):
    """How the model thinks."""

    effort: Annotated[str | None, described("`none` switches thinking off, another word switches it on.")] = None
    summary: Annotated[str | None, described("Accepted without effect.")] = None


class ResponsesBody(msgspec.Struct, frozen=True, kw_only=True):
    """The body of `POST /v1/responses`. A null is the same as leaving the field out."""

    input: Annotated[str | list[InputItem], described("A text, or the conversation so far.", maxItems=MAX_ITEMS)]
    model: Annotated[str | None, described("Id of the served model; may be left out.")] = None
    instructions: Annotated[str | None, described("What the system says before all else.")] = None
    tools: Annotated[list[FunctionTool] | None, described("What the model may call.")] = None
    tool_choice: Annotated[str | ToolChoiceField | None, described("Whether functions are called.")] = None
    parallel_tool_calls: Annotated[bool | None, described("Whether there may be several calls; true.")] = None
    text: Annotated[TextField | None, described("How the text looks.")] = None
    reasoning: Annotated[ReasoningField | None, described("How the model thinks.")] = None
    max_output_tokens: Annotated[
        int | None, described("Most tokens to generate; if left out, what the context leaves.", minimum=1)
    ] = None
    temperature: Annotated[float | None, described("0 always takes the most probable token.", minimum=0)] = None
    top_p: Annotated[float | None, described("Sample from the most probable tokens that hold this much.")] = None
    top_k: Annotated[int | None, described("Sample from this many most probable tokens.", minimum=1)] = None
    seed: Annotated[int | None, described("The same seed gives the same tokens.")] = None
    chat_template_kwargs: Annotated[dict[str, Any] | None, described("Further variables of the chat template.")] = None
    stream: Annotated[bool | None, described("Send events as tokens are made.")] = None
    metadata: Annotated[dict[str, Any] | None, described("Is in the response too.")] = None
    store: Annotated[bool | None, described("Accepted without effect: nothing is stored.")] = None
    truncation: Annotated[str | None, described("Accepted without effect: nothing is left out of the input.")] = None
    previous_response_id: Annotated[str | None, restricted("Only null.", send=_STATELESS)] = None
    conversation: Annotated[Any, restricted("Only null.", send=_STATELESS)] = None
    background: Annotated[bool | None, restricted("Only false.", allow=(False,), send="false")] = None


def responses_request(body: ResponsesBody, *, served_model: str) -> GenerateRequest:
    """Return the engine's request for `body`.

    Raises:
        ApiError: 400: a value that is wrong, or an item that is not supported; 404: a model that is not served.
    """
    check_restricted(body)
    messages = conversation_of(body.input, instructions=body.instructions)
    check_results(messages, param="input")
    check_model(body.model, served_model=served_model)
    tools = functions_of(body)
    choice, name = _choice(body, tools)
    if isinstance(body.tool_choice, ToolChoiceField) and body.tool_choice.type == "allowed_tools":
        allowed = {tool.name for tool in body.tool_choice.tools or ()}
        tools = tuple(tool for tool in tools if tool.name in allowed)
    prompt = ChatPrompt(
        messages=messages,
        tools=tools,
        tool_choice=choice,
        tool_name=name,
        parallel_tool_calls=body.parallel_tool_calls is not False,
        template_kwargs=template_kwargs_of(
            body.reasoning.effort if body.reasoning else None, body.chat_template_kwargs
        ),
    )
    names = ("temperature", "top_p", "top_k", "seed")
    given = {name: value for name in names if (value := getattr(body, name)) is not None}
    try:
        params = SamplingParams(
            max_tokens=body.max_output_tokens, structured_outputs=_structured_outputs(body.text), **given
        )
    except ValueError as error:
        message = str(error).replace("`max_tokens`", "`max_output_tokens`")
        raise out_of_range(message.split("`")[1] if "`" in message else None, message) from None
    return GenerateRequest(prompt=prompt, params=params)


def functions_of(body: ResponsesBody) -> tuple[Tool, ...]:
    """Return the functions among the tools.

    Raises:
        ApiError: 400: a function without a proper name, or two of one name.
    """
    functions = [(index, tool) for index, tool in enumerate(body.tools or ()) if tool.type == "function"]
    tools = tuple(
        Tool(name=tool.name or "", description=tool.description, parameters=tool.parameters, strict=bool(tool.strict))
        for _, tool in functions
    )
    check_tools(tools, places=[f"tools[{index}]" for index, _ in functions])
    return tools


def _choice(body: ResponsesBody, tools: tuple[Tool, ...]) -> tuple[ToolChoice, str | None]:
    choice: Any = body.tool_choice or "auto"
    if isinstance(choice, ToolChoiceField):
        if choice.type == "function":
            check_forced_tool(choice.name or "", tools, param="tool_choice.name")
            return "required", choice.name
        choice = choice.mode or "auto" if choice.type == "allowed_tools" else choice.type
    match choice:
        case "none" | "auto":
            return choice, None
        case "required" if tools:
            return "required", None
        case "required":
            raise out_of_range("tool_choice", "`tool_choice` is `required`, but there are no functions; send some.")
    raise out_of_range(
        "tool_choice", f"`tool_choice` is {shorten(str(choice), 40)!r}; send `none`, `auto`, `required` or a function."
    )


def _structured_outputs(text: TextField | None) -> StructuredOutputs | None:
    wanted = text.format if text else None
    match wanted:
        case None | TextFormat(type="text"):
            return None
        case TextFormat(type="json_object"):
            return StructuredOutputs(json_object=True)
        case TextFormat(type="json_schema", schema=dict(schema)):
            return StructuredOutputs(json=schema)
    raise out_of_range(
        "text.format", f"`text.format` must be of one of the types {', '.join(_FORMATS)}, the last with a `schema`."
    )
