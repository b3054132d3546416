"""The fields of a chat that are about tools: what may be called, what must be, and what was."""

from typing import Annotated, TypedDict

import msgspec

from infer_engine.protocol import Tool, ToolCall
from infer_engine.protocol.chat import ToolChoice
from infer_server.errors import missing
from infer_server.generation.tools import (
    MAX_TOOLS,
    TOOL_CHOICES,
    TOOL_NAME_PATTERN,
    check_forced_tool,
    check_tool_name,
    check_tools,
    checked_choice,
    read_arguments,
)
from infer_server.openai.fields import described
from infer_server.openai.shared_fields import ToolDescription, ToolName, ToolParameters, ToolStrict
from infer_server.openai.validation import unsupported

_FUNCTION = {"enum": ["function"]}


class FunctionDefinition(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A function that the model may call."""

    name: ToolName
    description: ToolDescription = None
    parameters: ToolParameters = None
    strict: ToolStrict = None


class ToolDefinition(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A tool of the client."""

    type: Annotated[str, described("Only `function`.", **_FUNCTION)]
    function: FunctionDefinition


class FunctionName(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Names a function of `tools`."""

    name: Annotated[str, described("Its name.", pattern=TOOL_NAME_PATTERN)]


class NamedToolChoice(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The function that must be called."""

    type: Annotated[str, described("Only `function`.", **_FUNCTION)]
    function: FunctionName


class CalledFunction(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A function and the arguments that it was called with."""

    name: Annotated[str, described("Its name.", pattern=TOOL_NAME_PATTERN)]
    arguments: Annotated[str, described("The JSON text of an object.")]


class ToolCallField(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A call of an earlier answer, as it came."""

    id: Annotated[str, described("What the message with its result names.")]
    type: Annotated[str, described("Only `function`.", **_FUNCTION)] = "function"
    function: CalledFunction
    index: Annotated[int | None, described("Accepted without effect.")] = None


TOOLS = described("What the model may call.", maxItems=MAX_TOOLS)
TOOL_CHOICE = described(
    "`auto` lets the model choose, `required` makes it call, a function must be called, `none` hides the tools; `auto` "
    "if left out.",
    anyOf=[{"enum": list(TOOL_CHOICES)}, {"type": "object"}, {"type": "null"}],
)


class ToolSettings(TypedDict):
    """The part of a `ChatPrompt` that is about tools."""

    tools: tuple[Tool, ...]
    tool_choice: ToolChoice
    tool_name: str | None
    parallel_tool_calls: bool


def tool_settings(
    tools: list[ToolDefinition] | None, choice: str | NamedToolChoice | None, *, parallel: bool | None
) -> ToolSettings:
    """Return what a `ChatPrompt` says of tools.

    Raises:
        ApiError: 400: a tool or the choice among them is wrong.
    """
    places = [f"tools[{index}].function" for index in range(len(tools or ()))]
    for index, tool in enumerate(tools or ()):
        _check_type(tool.type, f"tools[{index}].type")
    offered = tuple(
        Tool(
            name=tool.function.name,
            description=tool.function.description,
            parameters=tool.function.parameters,
            strict=bool(tool.function.strict),
        )
        for tool in tools or ()
    )
    check_tools(offered, places=places)
    name = None
    if isinstance(choice, NamedToolChoice):
        _check_type(choice.type, "tool_choice.type")
        name, choice = choice.function.name, "required"
        check_forced_tool(name, offered, param="tool_choice")
    return ToolSettings(
        tools=offered,
        tool_choice=checked_choice(choice or "auto", offered),
        tool_name=name,
        parallel_tool_calls=parallel is not False,
    )


def tool_calls(calls: list[ToolCallField] | None, at: str) -> tuple[ToolCall, ...]:
    """Return the calls of an assistant's message.

    Raises:
        ApiError: 400: one of another type, without an id, or with arguments that are no JSON object.
    """
    read = []
    for index, call in enumerate(calls or ()):
        place = f"{at}[{index}]"
        _check_type(call.type, f"{place}.type")
        if not call.id:
            raise missing(f"{place}.id")
        check_tool_name(call.function.name, param=f"{place}.function.name")
        arguments = read_arguments(call.function.arguments, param=f"{place}.function.arguments")
        read.append(ToolCall(id=call.id, name=call.function.name, arguments=arguments))
    return tuple(read)


def _check_type(kind: str, param: str) -> None:
    if kind != "function":
        raise unsupported(param, kind, send="`function`")
