"""Checks of tools and tool calls, whatever the API that they come through."""

import re
from collections.abc import Sequence
from typing import Any

import msgspec

from infer_engine.protocol import ChatMessage, Tool
from infer_engine.protocol.chat import ToolChoice
from infer_server.errors import shorten
from infer_server.openai.validation import out_of_range

MAX_TOOLS = 256
TOOL_NAME_PATTERN = r"^[A-Za-z0-9_.-]{1,128}$"
TOOL_CHOICES: tuple[ToolChoice, ...] = ("none", "auto", "required")
_TOOL_NAME = re.compile(TOOL_NAME_PATTERN)


def check_tools(tools: Sequence[Tool], *, places: Sequence[str]) -> None:
    """Refuse tools that could not be told apart or called; `places` are the client's names for them, in order.

    Raises:
        ApiError: 400: too many tools, a name that is no plain name, or one that comes twice.
    """
    if len(tools) > MAX_TOOLS:
        raise out_of_range("tools", f"`tools` has {len(tools)} tools; send at most {MAX_TOOLS}.")
    names: set[str] = set()
    for tool, place in zip(tools, places, strict=True):
        check_tool_name(tool.name, param=f"{place}.name")
        if tool.name in names:
            raise out_of_range(
                f"{place}.name", f"`{place}.name` is `{tool.name}`, as that of another tool; rename one."
            )
        names.add(tool.name)


def check_tool_name(name: str, *, param: str) -> None:
    """Refuse a name that is no plain name.

    Raises:
        ApiError: 400.
    """
    if not _TOOL_NAME.fullmatch(name):
        raise out_of_range(
            param, f"`{param}` is {shorten(name, 40)!r}; send 1 to 128 letters, digits, `_`, `-` or `.`."
        )


def check_forced_tool(name: str, tools: Sequence[Tool], *, param: str) -> None:
    """Refuse to force a tool that is not there.

    Raises:
        ApiError: 400.
    """
    if all(tool.name != name for tool in tools):
        raise out_of_range(param, f"`{param}` is {shorten(name, 40)!r}, which is none of `tools`; send one of theirs.")


def check_results(messages: Sequence[ChatMessage], *, param: str) -> None:
    """Refuse a result of a tool call that no earlier message made.

    Raises:
        ApiError: 400.
    """
    known: set[str] = set()
    for message in messages:
        known.update(call.id for call in message.tool_calls)
        if message.tool_call_id is not None and message.tool_call_id not in known:
            raise out_of_range(
                param,
                f"`{param}` has the result of the tool call {shorten(message.tool_call_id, 60)!r}, which no message "
                "before it makes; send the assistant's message with that call too.",
            )


def checked_choice(choice: str, tools: Sequence[Tool]) -> ToolChoice:
    """Return `choice`, the value of `tool_choice` in OpenAI's APIs where it names no function.

    Raises:
        ApiError: 400: it is no such word, or requires a call though there are no functions.
    """
    for known in TOOL_CHOICES:
        if choice == known:
            if known == "required" and not tools:
                raise out_of_range(
                    "tool_choice", "`tool_choice` is `required`, but `tools` has no functions; send some."
                )
            return known
    words = ", ".join(TOOL_CHOICES)
    raise out_of_range("tool_choice", f"`tool_choice` is {shorten(choice, 40)!r}; send one of {words}, or a function.")


def read_arguments(text: str, *, param: str) -> dict[str, Any]:
    """Return the arguments of a call, which clients send back as JSON text; an empty text is no arguments.

    Raises:
        ApiError: 400: it is no JSON object.
    """
    try:
        arguments = msgspec.json.decode(text or "{}")
    except (msgspec.DecodeError, UnicodeEncodeError, RecursionError) as error:
        raise out_of_range(param, f"`{param}` is not JSON ({error}); send a call's arguments as they came.") from None
    if not isinstance(arguments, dict):
        raise out_of_range(param, f"`{param}` is not a JSON object; send a call's arguments as they came.")
    return arguments
