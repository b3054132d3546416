"""The fields of a response that are about tools: what may be called, and what must be."""

from typing import Annotated, Any, Literal, TypeVar

import msgspec

from infer_engine.protocol import Tool
from infer_server.errors import missing
from infer_server.generation.tools import (
    MAX_TOOLS,
    TOOL_CHOICES,
    TOOL_NAME_PATTERN,
    check_forced_tool,
    check_tools,
    checked_choice,
)
from infer_server.openai.fields import described
from infer_server.openai.responses.typed_objects import decode_object, dropped_object, object_type
from infer_server.openai.shared_fields import ToolDescription, ToolName, ToolParameters, ToolStrict
from infer_server.openai.validation import out_of_range, unsupported
from infer_server.openapi import schema_of

_FUNCTION = "function"

T = TypeVar("T", bound=msgspec.Struct)


class FunctionTool(msgspec.Struct, frozen=True, kw_only=True):
    """A function that the model may call."""

    type: Literal["function"]
    name: ToolName
    description: ToolDescription = None
    parameters: ToolParameters = None
    strict: ToolStrict = None


class NamedFunction(msgspec.Struct, frozen=True, kw_only=True):
    """The function that must be called."""

    type: Literal["function"]
    name: Annotated[str, described("Its name.", pattern=TOOL_NAME_PATTERN)]


class AllowedTools(msgspec.Struct, frozen=True, kw_only=True):
    """Those of `tools` that may be called now."""

    type: Literal["allowed_tools"]
    mode: Annotated[Literal["auto", "required"], described("`auto` lets the model choose, `required` makes it call.")]
    tools: Annotated[
        list[dict[str, Any]],
        described(
            "Their types and names.",
            oneOf=[{"type": "array", "items": {"anyOf": [schema_of(NamedFunction), dropped_object([_FUNCTION])]}}],
        ),
    ]


TOOLS = described(
    "What the model may call. Only functions: tools of other types are accepted without effect.",
    oneOf=[
        {
            "type": "array",
            "maxItems": MAX_TOOLS,
            "items": {"anyOf": [schema_of(FunctionTool), dropped_object([_FUNCTION])]},
        },
        {"type": "null"},
    ],
)
TOOL_CHOICE = described(
    "`auto` lets the model choose, `required` makes it call, a function must be called, `none` hides the tools; `auto` "
    "if left out.",
    oneOf=[{"enum": list(TOOL_CHOICES)}, schema_of(NamedFunction), schema_of(AllowedTools), {"type": "null"}],
)


def tool_settings(tools: list[dict[str, Any]] | None, choice: str | dict[str, Any] | None) -> dict[str, Any]:
    """Return what a `ChatPrompt` says of tools: its `tools`, `tool_choice` and `tool_name`.

    Raises:
        ApiError: 400: a tool or the choice among them is wrong.
    """
    offered = _tools(tools or [])
    name, wanted = None, "auto" if choice is None else choice
    if isinstance(wanted, dict):
        match object_type(wanted, at="tool_choice"):
            case "function":
                name, wanted = decode_object(wanted, NamedFunction, at="tool_choice").name, "required"
                check_forced_tool(name, offered, param="tool_choice.name")
            case "allowed_tools":
                allowed = decode_object(wanted, AllowedTools, at="tool_choice")
                offered, wanted = _allowed(allowed.tools, offered), allowed.mode
            case None:
                raise missing("tool_choice.type")
            case kind:
                raise unsupported("tool_choice.type", kind, send="`function` or `allowed_tools`")
    return {"tools": offered, "tool_choice": checked_choice(wanted, offered), "tool_name": name}


def function_tools(tools: list[dict[str, Any]] | None) -> list[FunctionTool]:
    """Return the functions among `tools`.

    Raises:
        ApiError: 400: one of them is wrong.
    """
    return [function for _, function in _functions(tools or [], FunctionTool, at="tools")]


def _tools(given: list[dict[str, Any]]) -> tuple[Tool, ...]:
    if len(given) > MAX_TOOLS:
        raise out_of_range("tools", f"`tools` has {len(given)} tools; send at most {MAX_TOOLS}.")
    functions = _functions(given, FunctionTool, at="tools")
    tools = tuple(
        Tool(name=each.name, description=each.description, parameters=each.parameters, strict=bool(each.strict))
        for _, each in functions
    )
    check_tools(tools, places=[place for place, _ in functions])
    return tools


def _allowed(given: list[dict[str, Any]], tools: tuple[Tool, ...]) -> tuple[Tool, ...]:
    names = set()
    for place, function in _functions(given, NamedFunction, at="tool_choice.tools"):
        check_forced_tool(function.name, tools, param=f"{place}.name")
        names.add(function.name)
    return tuple(tool for tool in tools if tool.name in names)


def _functions(given: list[dict[str, Any]], struct: type[T], *, at: str) -> list[tuple[str, T]]:
    """Return the functions in `given`, which is at the place `at` in the body, each with its own place."""
    functions = []
    for index, tool in enumerate(given):
        place = f"{at}[{index}]"
        kind = object_type(tool, at=place)
        if kind is None:
            raise missing(f"{place}.type")
        if kind == _FUNCTION:
            functions.append((place, decode_object(tool, struct, at=place)))
    return functions
