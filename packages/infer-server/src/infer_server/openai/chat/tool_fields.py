"""The fields of a chat that are about tools: what may be called, and what was.

Tools in the shapes of responses and of Messages, whose functions have no object of their own, are taken too.
"""

from collections.abc import Collection
from typing import Annotated, Any

import msgspec
from msgspec import UNSET, UnsetType

from infer_engine.protocol import Tool, ToolCall
from infer_server.api.fields import described
from infer_server.api.history import read_arguments
from infer_server.api.shared_fields import ToolDescription, ToolName, ToolParameters, ToolStrict
from infer_server.api.tools import MAX_TOOLS, check_forced_tool, check_tools
from infer_server.api.validation import unsupported, wrong_value
from infer_server.errors import missing, shorten
from infer_server.openai.tool_choice import FunctionName, ToolChoiceField, ToolSettings, tool_settings_of
from infer_server.openai.typed_objects import decode_object, object_type
from infer_server.openapi import schema_of

_FUNCTION = {"enum": ["function"]}


class FunctionDefinition(msgspec.Struct, frozen=True, kw_only=True):
    """A function that the model may call. Unknown fields are passed over."""

    name: ToolName
    description: ToolDescription = None
    parameters: ToolParameters = None
    strict: ToolStrict = None


class ToolDefinition(msgspec.Struct, frozen=True, kw_only=True):
    """A tool of the client. Unknown fields, such as `cache_control`, are passed over."""

    type: Annotated[str, described("Only `function`.", **_FUNCTION)]
    function: FunctionDefinition


class CalledFunction(msgspec.Struct, frozen=True, kw_only=True):
    """A function and the arguments that it was called with."""

    name: Annotated[str, described("Its name.")]
    arguments: Annotated[
        str | dict[str, Any] | None,
        described("The JSON text of an object, or the object; what a cut-off call has is taken as it is."),
    ] = None


class CustomCall(msgspec.Struct, frozen=True, kw_only=True):
    """A tool that takes a text, and the text."""

    name: Annotated[str, described("Its name.")]
    input: Annotated[str | None, described("The text.")] = None


class ToolCallField(msgspec.Struct, frozen=True, kw_only=True):
    """A call of an earlier answer, as it came. Unknown fields are passed over."""

    id: Annotated[str | None, described("What the message with its result names; may be left out.")] = None
    type: Annotated[str | None, described("`function` or `custom`.")] = None
    function: Annotated[CalledFunction | UnsetType, described("The function that was called.")] = UNSET
    custom: Annotated[CustomCall | None, described("The tool of the type `custom` that was called.")] = None


TOOLS = described(
    "What the model may call; templates get it as it is.",
    oneOf=[{"type": "array", "maxItems": MAX_TOOLS, "items": schema_of(ToolDefinition)}, {"type": "null"}],
)
FUNCTIONS = described(
    "The functions of `tools` in the words of the older API: an answer has one `function_call`.",
    oneOf=[{"type": "array", "maxItems": MAX_TOOLS, "items": schema_of(FunctionDefinition)}, {"type": "null"}],
)
FUNCTION_CHOICES = ("none", "auto")
FUNCTION_CALL = described(
    "The `tool_choice` among `functions`.",
    oneOf=[{"enum": list(FUNCTION_CHOICES)}, schema_of(FunctionName), {"type": "null"}],
)
_OF_PROXIES = ("cache_control",)
_INSIDE = ("name", "description", "parameters", "input_schema", "strict")


def tool_settings(
    tools: list[dict[str, Any]] | None, choice: ToolChoiceField, *, parallel: bool | None
) -> ToolSettings:
    """Return what a `ChatPrompt` says of tools.

    Raises:
        ApiError: 400: a tool or the choice among them is wrong.
    """
    places = [f"tools[{index}].function" for index in range(len(tools or ()))]
    offered = tuple(_tool(tool, f"tools[{index}]") for index, tool in enumerate(tools or ()))
    check_tools(offered, places=places)
    return tool_settings_of(choice, offered, parallel=parallel)


def function_settings(functions: list[dict[str, Any]], choice: str | dict[str, Any] | None) -> ToolSettings:
    """Return what a `ChatPrompt` says of `functions`, of which an answer in the older words has one call.

    Raises:
        ApiError: 400: a function or the choice among them is wrong.
    """
    places = [f"functions[{index}]" for index in range(len(functions))]
    read = [decode_object(each, FunctionDefinition, at=place) for each, place in zip(functions, places, strict=True)]
    offered = tuple(
        _offered(function, {"type": "function", "function": each})
        for function, each in zip(read, functions, strict=True)
    )
    check_tools(offered, places=places)
    if isinstance(choice, str) and choice not in FUNCTION_CHOICES:
        raise wrong_value(
            "function_call", f"`function_call` is {shorten(choice, 40)!r}; send `none`, `auto` or a function's name."
        )
    if isinstance(choice, dict):
        name = decode_object(choice, FunctionName, at="function_call").name
        check_forced_tool(name, offered, param="function_call.name")
        choice = {"type": "function", "name": name}
    return tool_settings_of(choice, offered, parallel=False)


def _tool(given: dict[str, Any], at: str) -> Tool:
    kind = object_type(given, at=at)
    if kind not in (None, "function"):
        raise unsupported(f"{at}.type", kind, send="`function`")
    given = _nested(given)
    return _offered(decode_object(given, ToolDefinition, at=at).function, given)


def _offered(function: FunctionDefinition, given: dict[str, Any]) -> Tool:
    """Return the tool with a `function`, which the client has `given`."""
    return Tool(
        name=function.name,
        description=function.description,
        parameters=function.parameters,
        strict=bool(function.strict),
        definition=_without(_OF_PROXIES, {**given, "function": _without(_OF_PROXIES, given["function"])}),
    )


def _nested(tool: dict[str, Any]) -> dict[str, Any]:
    """Return a tool in the shape of chats."""
    function = tool.get("function", {})
    if not isinstance(tool.get("name"), str) or not isinstance(function, dict) or "name" in function:
        return tool
    beside = {"parameters" if name == "input_schema" else name: tool[name] for name in _INSIDE if name in tool}
    named = {"type": "function"} if "input_schema" in tool else {}  # Messages name no type
    return named | _without(_INSIDE, tool) | {"function": beside | function}


def _without(names: Collection[str], fields: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in fields.items() if name not in names}


def tool_calls(calls: list[ToolCallField] | None, older: CalledFunction | None, at: str) -> tuple[ToolCall, ...]:
    """Return the calls of an assistant's message at the place `at`; `older` is its `function_call`.

    Raises:
        ApiError: 400: one without a function.
    """
    read = [_call(call, f"{at}.tool_calls[{index}]") for index, call in enumerate(calls or ())]
    if older is not None and not read:
        read.append(ToolCall(id="", name=older.name, arguments=read_arguments(older.arguments)))
    return tuple(read)


def _call(call: ToolCallField, at: str) -> ToolCall:
    if call.function is not UNSET:
        called = call.function
        return ToolCall(id=call.id or "", name=called.name, arguments=read_arguments(called.arguments))
    if call.custom is not None:
        return ToolCall(id=call.id or "", name=call.custom.name, arguments={"input": call.custom.input or ""})
    raise missing(f"{at}.{'custom' if call.type == 'custom' else 'function'}")
