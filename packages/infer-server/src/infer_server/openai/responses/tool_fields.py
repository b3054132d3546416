"""The tools of a response: what may be called, and what its client calls it.

The model sees functions only: a tool that takes a text is one with the argument `input`, and the functions of a
namespace have its name before their own. Their calls come back as the client knows them.
"""

from collections.abc import Iterator
from typing import Annotated, Any, Literal, NamedTuple

import msgspec

from infer_engine.protocol import Tool
from infer_server.api.fields import described
from infer_server.api.shared_fields import ToolDescription, ToolName, ToolParameters, ToolStrict
from infer_server.api.tools import MAX_TOOLS, TOOL_NAME_PATTERN, check_tool_name, check_tools
from infer_server.api.validation import too_many, unsupported
from infer_server.errors import missing
from infer_server.openai.tool_choice import ToolChoiceField, ToolSettings, tool_settings_of
from infer_server.openai.typed_objects import decode_object, dropped_object, object_type
from infer_server.openapi import schema_of

_FUNCTION = "function"
_CUSTOM = "custom"
_KNOWN = (_FUNCTION, _CUSTOM, "namespace")
INPUT = "input"
_INPUT_SCHEMA = {
    "type": "object",
    "properties": {INPUT: {"type": "string"}},
    "required": [INPUT],
    "additionalProperties": False,
}


class FunctionTool(msgspec.Struct, frozen=True, kw_only=True):
    """A function that the model may call."""

    type: Literal["function"]
    name: ToolName
    description: ToolDescription = None
    parameters: ToolParameters = None
    strict: ToolStrict = None


class CustomTool(msgspec.Struct, frozen=True, kw_only=True):
    """A tool that takes a text. The model is told of a grammar; it is not held to it."""

    type: Literal["custom"]
    name: ToolName
    description: ToolDescription = None
    format: Annotated[dict[str, Any] | None, described("What the text looks like.")] = None


_FUNCTIONS = described(
    "Its functions, and tools that take a text.",
    oneOf=[
        {
            "type": "array",
            "items": {
                "anyOf": [schema_of(FunctionTool), schema_of(CustomTool), dropped_object([_FUNCTION, _CUSTOM])],
            },
        }
    ],
)


class NamespaceTool(msgspec.Struct, frozen=True, kw_only=True):
    """Functions under one name."""

    type: Literal["namespace"]
    name: Annotated[str, described("Comes before the names of its functions.", pattern=TOOL_NAME_PATTERN)]
    description: ToolDescription = None
    tools: Annotated[list[dict[str, Any]], _FUNCTIONS]


class CallableTool(NamedTuple):
    """A tool as the model sees it, and as the client knows it; `place` is that in the body."""

    tool: Tool
    place: str
    name: str
    namespace: str | None = None
    is_custom: bool = False


TOOLS = described(
    "What the model may call: functions, tools that take a text, and namespaces of functions. Others are accepted "
    "without effect where they come beside these.",
    oneOf=[
        {
            "type": "array",
            "maxItems": MAX_TOOLS,
            "items": {
                "anyOf": [
                    schema_of(FunctionTool),
                    schema_of(CustomTool),
                    schema_of(NamespaceTool),
                    dropped_object(_KNOWN),
                ],
            },
        },
        {"type": "null"},
    ],
)


def tool_settings(
    tools: list[dict[str, Any]] | None, choice: ToolChoiceField, *, parallel: bool | None
) -> ToolSettings:
    """Return what a `ChatPrompt` says of tools.

    Raises:
        ApiError: 400: a tool or the choice among them is wrong, or there are tools and none can be called.
    """
    given = tools or []
    if len(given) > MAX_TOOLS:
        raise too_many("tools", len(given), "tools", most=MAX_TOOLS)
    read = callable_tools(given)
    if given and not read and choice != "none":
        raise unsupported("tools[0].type", given[0]["type"], send="`function`")
    offered = tuple(each.tool for each in read)
    check_tools(offered, places=[each.place for each in read])
    return tool_settings_of(choice, offered, parallel=parallel)


def callable_tools(given: list[dict[str, Any]] | None) -> list[CallableTool]:
    """Return those of the tools `given` that can be called.

    Raises:
        ApiError: 400: one of them is wrong.
    """
    return list(_read(given or [], at="tools"))


def full_name(namespace: str | None, name: str) -> str:
    """Return the name by which the model calls a function of a namespace, if there is one."""
    if not namespace:
        return name
    return f"{namespace}{name}" if namespace.endswith("__") or name.startswith("__") else f"{namespace}__{name}"


def _read(given: list[dict[str, Any]], *, at: str, namespace: str | None = None) -> Iterator[CallableTool]:
    for index, tool in enumerate(given):
        place = f"{at}[{index}]"
        match object_type(tool, at=place):
            case None:
                raise missing(f"{place}.type")
            case "function":
                given_as, place = _function_in(tool, place)
                function = decode_object(given_as, FunctionTool, at=place)
                check_tool_name(function.name, param=f"{place}.name")
                seen = Tool(
                    name=full_name(namespace, function.name),
                    description=function.description,
                    parameters=function.parameters,
                    strict=bool(function.strict),
                )
                yield CallableTool(seen, place, function.name, namespace)
            case "custom":
                custom = decode_object(tool, CustomTool, at=place)
                check_tool_name(custom.name, param=f"{place}.name")
                name = full_name(namespace, custom.name)
                seen = Tool(name=name, description=_description(custom), parameters=_INPUT_SCHEMA)
                yield CallableTool(seen, place, custom.name, namespace, is_custom=True)
            case "namespace" if namespace is None:
                inside = decode_object(tool, NamespaceTool, at=place)
                check_tool_name(inside.name, param=f"{place}.name")
                yield from _read(inside.tools, at=f"{place}.tools", namespace=inside.name)


def _function_in(tool: dict[str, Any], place: str) -> tuple[dict[str, Any], str]:
    """Return the fields of a function and their place; chats have them in an object of their own."""
    inside = tool.get(_FUNCTION)
    if not isinstance(inside, dict) or "name" in tool:
        return tool, place
    return {**inside, "type": _FUNCTION}, f"{place}.{_FUNCTION}"


def _description(custom: CustomTool) -> str | None:
    """Return what the model is told of a tool that takes a text: also what the text looks like."""
    grammar = (custom.format or {}).get("definition")
    if not isinstance(grammar, str):
        return custom.description
    return "\n\n".join(filter(None, [custom.description, f"`{INPUT}` matches this grammar:\n{grammar}"]))
