"""Calls of tools that OpenAI's models know by themselves, and their results, in the input of a response.

Agents run these tools, so a conversation that began with another model has such items. They are calls and results like
those of functions: the model here shall see what was done.
"""

from typing import Annotated, Any

import msgspec
from msgspec import UNSET

from infer_engine.protocol import ChatMessage, ToolCall
from infer_server.api.fields import described
from infer_server.api.history import read_arguments
from infer_server.errors import missing
from infer_server.openai.content_parts import read_result
from infer_server.openai.responses.tool_fields import full_name
from infer_server.openai.typed_objects import decode_object

# The field with the arguments of each call, and that with the content of each result.
_CALLS = {
    "custom_tool_call": "input",
    "local_shell_call": "action",
    "shell_call": "action",
    "apply_patch_call": "operation",
    "tool_search_call": "arguments",
    "mcp_call": "arguments",
}
_RESULTS = {
    "custom_tool_call_output": "output",
    "local_shell_call_output": "output",
    "shell_call_output": "output",
    "apply_patch_call_output": "output",
    "tool_search_output": "tools",
    "mcp_call": "output",
}
PROVIDER_ITEMS = frozenset(_CALLS) | frozenset(_RESULTS)


class ProviderItem(msgspec.Struct, frozen=True, kw_only=True):
    """A call of a tool that OpenAI's models know, or its result; which fields it has depends on its type."""

    type: Annotated[str, described("Of the call or the result.", enum=sorted(PROVIDER_ITEMS))]
    id: Annotated[str | None, described("Its own id.")] = None
    call_id: Annotated[str | None, described("That of the call.")] = None
    name: Annotated[str | None, described("Of the tool.")] = None
    namespace: Annotated[str | None, described("That of the tool, if it has one.")] = None
    input: Annotated[str | None, described("Of a custom tool.")] = None
    arguments: Annotated[str | dict[str, Any] | None, described("Of a search for tools, or of MCP.")] = None
    action: Annotated[dict[str, Any] | None, described("Of a shell.")] = None
    operation: Annotated[dict[str, Any] | None, described("Of a patch.")] = None
    output: Annotated[Any, described("The result: text, parts of it, or any JSON.")] = UNSET
    error: Annotated[Any, described("Why there is no result.")] = None
    status: Annotated[Any, described("Read where a result has nothing else.")] = None
    tools: Annotated[Any, described("The tools that were found.")] = UNSET


def read_provider_item(item: dict[str, Any], *, at: str) -> tuple[ToolCall | None, ChatMessage | None]:
    """Return the call and the result that the `item` at the place `at` stands for.

    Raises:
        ApiError: 400: it has not the fields of its type.
    """
    read = decode_object(item, ProviderItem, at=at)
    call_id = read.call_id or read.id
    call = result = None
    if read.type in _CALLS:
        field = _CALLS[read.type]
        given = getattr(read, field)
        arguments = {field: given or ""} if field == "input" else read_arguments(given)
        name = full_name(read.namespace, read.name or read.type.removesuffix("_call"))
        call = ToolCall(id=call_id or "", name=name, arguments=arguments)
    if read.type in _RESULTS:
        field = _RESULTS[read.type]
        content = getattr(read, field)
        if content in (UNSET, None) and read.error is not None:
            content = {"error": read.error}
        if content is UNSET and call is None:
            if read.status is None:
                raise missing(f"{at}.{field}")
            content = read.status
        if content not in (UNSET, None) or call is None:
            result = ChatMessage(role="tool", content=read_result(content), tool_call_id=call_id)
    return call, result
