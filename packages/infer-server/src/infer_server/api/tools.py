"""Checks of tools and of the choice among them, whatever the API that they come through."""

import re
import secrets
from collections.abc import Sequence

from infer_engine.protocol import Tool
from infer_engine.protocol.chat import ToolChoice
from infer_server.api.validation import too_many, wrong_value
from infer_server.errors import shorten

MAX_TOOLS = 256
TOOL_NAME_PATTERN = r"^[A-Za-z0-9_.-]{1,128}$"
_CALL_ID_BYTES = 12
TOOL_CHOICES: tuple[ToolChoice, ...] = ("none", "auto", "required")
_TOOL_NAME = re.compile(TOOL_NAME_PATTERN)


def check_tools(tools: Sequence[Tool], *, places: Sequence[str]) -> None:
    """Refuse tools that could not be told apart or called; `places` are the client's names for them, in order.

    Raises:
        ApiError: 400: too many tools, a name that is no plain name, or one that comes twice.
    """
    if len(tools) > MAX_TOOLS:
        raise too_many("tools", len(tools), "tools", most=MAX_TOOLS)
    names: set[str] = set()
    for tool, place in zip(tools, places, strict=True):
        check_tool_name(tool.name, param=f"{place}.name")
        if tool.name in names:
            raise wrong_value(f"{place}.name", f"`{place}.name` is `{tool.name}`, as that of another tool; rename one.")
        names.add(tool.name)


def check_tool_name(name: str, *, param: str) -> None:
    """Refuse a name that is no plain name.

    Raises:
        ApiError: 400.
    """
    if not _TOOL_NAME.fullmatch(name):
        message = f"`{param}` is {shorten(name, 40)!r}; send 1 to 128 letters, digits, `_`, `-` or `.`."
        raise wrong_value(param, message, code="invalid_value" if name else "empty_string")


def check_forced_tool(name: str, tools: Sequence[Tool], *, param: str) -> None:
    """Refuse to force a tool that is not there.

    Raises:
        ApiError: 400.
    """
    if all(tool.name != name for tool in tools):
        raise wrong_value(param, f"`{param}` is {shorten(name, 40)!r}, which is none of `tools`; send one of theirs.")


def new_call_id(prefix: str = "call") -> str:
    """Return an id for a tool call, of letters and digits after its prefix."""
    return f"{prefix}_{secrets.token_hex(_CALL_ID_BYTES)}"
