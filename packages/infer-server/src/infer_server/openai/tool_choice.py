"""`tool_choice` in OpenAI's APIs: whether tools are called, and which.

Chats put the function's name into `function`, and responses beside the `type`; both shapes are taken in both.
"""

from collections.abc import Iterable
from typing import Annotated, Any, Literal, TypedDict

import msgspec

from infer_engine.protocol import Tool
from infer_engine.protocol.chat import ToolChoice
from infer_server.api.fields import described
from infer_server.api.tools import TOOL_CHOICES, TOOL_NAME_PATTERN, check_forced_tool
from infer_server.api.validation import conflict, unsupported, wrong_value
from infer_server.errors import missing, shorten
from infer_server.openai.typed_objects import decode_object, dropped_object, object_type
from infer_server.openapi import schema_of

_FUNCTION = "function"
_NAMED = (_FUNCTION, "custom")
_NAME = described("Its name.", pattern=TOOL_NAME_PATTERN)
_ANY = "any"  # Mistral's word for `required`
_WORDS = (*TOOL_CHOICES, _ANY)


class FunctionName(msgspec.Struct, frozen=True, kw_only=True):
    """Names a function of `tools`."""

    name: Annotated[str, _NAME]


class NamedFunction(msgspec.Struct, frozen=True, kw_only=True):
    """The function that must be called, as responses name it."""

    type: Literal["function", "custom"]
    name: Annotated[str, _NAME]


class NamedToolChoice(msgspec.Struct, frozen=True, kw_only=True):
    """The function that must be called, as chats name it."""

    type: Literal["function"]
    function: FunctionName


_ALLOWED = described(
    "Their types and names.",
    oneOf=[
        {
            "type": "array",
            "items": {
                "anyOf": [schema_of(NamedFunction), schema_of(NamedToolChoice), dropped_object(_NAMED)],
            },
        }
    ],
)


class AllowedToolsInside(msgspec.Struct, frozen=True, kw_only=True):
    """Those of `tools` that may be called."""

    mode: Annotated[Literal["auto", "required"], described("`auto` lets the model choose, `required` makes it call.")]
    tools: Annotated[list[dict[str, Any]], _ALLOWED]


class AllowedTools(AllowedToolsInside, frozen=True, kw_only=True):
    """Those of `tools` that may be called now, as responses say it. The prompt names all of them."""

    type: Literal["allowed_tools"]


class NestedAllowedTools(msgspec.Struct, frozen=True, kw_only=True):
    """Those of `tools` that may be called now, as chats say it. The prompt names all of them."""

    type: Literal["allowed_tools"]
    allowed_tools: AllowedToolsInside


ToolChoiceField = str | dict[str, Any] | None

TOOL_CHOICE = described(
    "`auto` lets the model choose, `required` makes it call, a function must be called, `none` hides the tools, "
    "`allowed_tools` says which may be called without hiding the others; `auto` if left out.",
    oneOf=[
        {"enum": list(_WORDS)},
        {
            "anyOf": [
                schema_of(NamedFunction),
                schema_of(NamedToolChoice),
                schema_of(AllowedTools),
                schema_of(NestedAllowedTools),
            ]
        },
        {"type": "null"},
    ],
)


class ToolSettings(TypedDict):
    """The part of a `ChatPrompt` that is about tools."""

    tools: tuple[Tool, ...]
    tool_choice: ToolChoice
    tool_name: str | None
    allowed_tools: tuple[str, ...] | None
    parallel_tool_calls: bool


def tool_settings_of(choice: ToolChoiceField, tools: tuple[Tool, ...], *, parallel: bool | None) -> ToolSettings:
    """Return what a `ChatPrompt` says of `tools` and of the `choice` among them.

    Raises:
        ApiError: 400: the choice is wrong, or names none of the tools.
    """
    name: str | None = None
    allowed: tuple[str, ...] | None = None
    wanted = "auto" if choice is None else choice
    if isinstance(wanted, dict):
        match object_type(wanted, at="tool_choice"):
            case "function" | "custom":
                param = "tool_choice" if _FUNCTION in wanted else "tool_choice.name"
                name, wanted = _function_name(wanted, "tool_choice"), "required"
                check_forced_tool(name, tools, param=param)
            case "allowed_tools":
                inside, at = _allowed_tools(wanted)
                allowed = tuple(_allowed_names(inside.tools, tools, at=f"{at}.tools"))
                wanted = inside.mode
            case None:
                raise missing("tool_choice.type")
            case kind if kind in _WORDS:
                wanted = kind
            case kind:
                raise unsupported("tool_choice.type", kind, send="`function` or `allowed_tools`")
    callable_tools = tools if allowed is None else allowed
    return ToolSettings(
        tools=tools,
        tool_choice=_word(wanted, may_call=bool(callable_tools)),
        tool_name=name,
        allowed_tools=allowed,
        parallel_tool_calls=parallel is not False,
    )


def _word(choice: str, *, may_call: bool) -> ToolChoice:
    word = "required" if choice == _ANY else choice
    for known in TOOL_CHOICES:
        if word == known:
            if known == "required" and not may_call:
                raise conflict("tool_choice", "`tool_choice` is `required`, but `tools` has no functions; send some.")
            return known
    words = ", ".join(TOOL_CHOICES)
    raise wrong_value("tool_choice", f"`tool_choice` is {shorten(choice, 40)!r}; send one of {words}, or a function.")


def _function_name(given: dict[str, Any], at: str) -> str:
    if isinstance(given.get(_FUNCTION), dict):
        return decode_object(given, NamedToolChoice, at=at).function.name
    if "name" not in given:
        raise missing(f"{at}.function")
    return decode_object(given, NamedFunction, at=at).name


def _allowed_tools(given: dict[str, Any]) -> tuple[AllowedToolsInside, str]:
    """Return what is allowed, and the place where it stands."""
    if "allowed_tools" in given:
        return decode_object(given, NestedAllowedTools, at="tool_choice").allowed_tools, "tool_choice.allowed_tools"
    return decode_object(given, AllowedTools, at="tool_choice"), "tool_choice"


def _allowed_names(given: list[dict[str, Any]], tools: tuple[Tool, ...], *, at: str) -> Iterable[str]:
    """Yield the names of the functions in `given`; tools of other types are never there to be called."""
    for index, tool in enumerate(given):
        place = f"{at}[{index}]"
        kind = object_type(tool, at=place)
        if kind is None:
            raise missing(f"{place}.type")
        if kind in _NAMED:
            name = _function_name(tool, place)
            check_forced_tool(name, tools, param=f"{place}.name")
            yield name
