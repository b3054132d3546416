"""The tools of a response: what may be called."""

from typing import Any, Literal

import msgspec

from infer_engine.protocol import Tool
from infer_server.errors import missing
from infer_server.generation.tools import MAX_TOOLS, check_tools
from infer_server.openai.fields import described
from infer_server.openai.shared_fields import ToolDescription, ToolName, ToolParameters, ToolStrict
from infer_server.openai.tool_choice import ToolChoiceField, ToolSettings, tool_settings_of
from infer_server.openai.typed_objects import decode_object, dropped_object, object_type
from infer_server.openai.validation import out_of_range
from infer_server.openapi import schema_of

_FUNCTION = "function"


class FunctionTool(msgspec.Struct, frozen=True, kw_only=True):
    """A function that the model may call."""

    type: Literal["function"]
    name: ToolName
    description: ToolDescription = None
    parameters: ToolParameters = None
    strict: ToolStrict = None


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


def tool_settings(
    tools: list[dict[str, Any]] | None, choice: ToolChoiceField, *, parallel: bool | None
) -> ToolSettings:
    """Return what a `ChatPrompt` says of tools.

    Raises:
        ApiError: 400: a tool or the choice among them is wrong.
    """
    return tool_settings_of(choice, _tools(tools or []), parallel=parallel)


def function_tools(tools: list[dict[str, Any]] | None) -> list[FunctionTool]:
    """Return the functions among `tools`.

    Raises:
        ApiError: 400: one of them is wrong.
    """
    return [function for _, function in _functions(tools or [])]


def _tools(given: list[dict[str, Any]]) -> tuple[Tool, ...]:
    if len(given) > MAX_TOOLS:
        raise out_of_range("tools", f"`tools` has {len(given)} tools; send at most {MAX_TOOLS}.")
    functions = _functions(given)
    tools = tuple(
        Tool(name=each.name, description=each.description, parameters=each.parameters, strict=bool(each.strict))
        for _, each in functions
    )
    check_tools(tools, places=[place for place, _ in functions])
    return tools


def _functions(given: list[dict[str, Any]]) -> list[tuple[str, FunctionTool]]:
    """Return the functions among the tools `given`, each with its own place in the body."""
    functions = []
    for index, tool in enumerate(given):
        place = f"tools[{index}]"
        kind = object_type(tool, at=place)
        if kind is None:
            raise missing(f"{place}.type")
        if kind == _FUNCTION:
            functions.append((place, decode_object(tool, FunctionTool, at=place)))
    return functions
