"""Tools for chat templates that know none: described in the system turn, with calls and results as plain text."""

from collections.abc import Mapping, Sequence
from typing import Any

from infer_models.text.chat.call_arguments import arguments_text
from infer_models.text.chat.call_format import ToolCallFormat
from infer_models.text.chat.templates.template import Message, Tool, json_text


def with_tools_as_text(
    messages: Sequence[Message], tools: Sequence[Mapping[str, Any]], tool_format: ToolCallFormat
) -> list[Message]:
    """Return a conversation of plain text that says the same as `messages` with `tools`.

    A system turn describes the tools; calls become text as the model shall write them; results become the user's.
    """
    names: dict[str, str] = {}
    follows_result = False
    written: list[dict[str, object]] = []
    for message in messages:
        calls = _calls_of(message)
        names |= {str(call.get("id")): call["function"]["name"] for call in calls}
        content = str(message.get("content") or "")
        role = message.get("role")
        if role == "tool":
            name = names.get(str(message.get("tool_call_id")), "the tool")
            role, content = "user", f"Result of {name}: {content}"
        else:
            content = _with_calls(content, calls, tool_format)
        if follows_result and role == "user":  # many templates refuse two turns of one role
            written[-1]["content"] = f"{written[-1]['content']}\n{content}"
        else:
            written.append({"role": role, "content": content})
        follows_result = role == "user" and (follows_result or message.get("role") == "tool")
    if tools:
        _describe(tools, tool_format, written)
    return list(written)


def complete(tool: Tool) -> Tool:
    """Return `tool` with the fields that templates may read of every tool and clients may leave out."""
    function = tool.get("function")
    if not isinstance(function, Mapping):
        return tool
    empty = {"description": "", "parameters": {"type": "object", "properties": {}}}
    missing = {name: value for name, value in empty.items() if function.get(name) is None}
    return {**tool, "function": {**function, **missing}} if missing else tool


def _essence(tool: Tool) -> Mapping[str, Any]:
    function: Any = complete(tool).get("function")
    return {name: function[name] for name in ("name", "description", "parameters")} if function else tool


def _calls_of(message: Message) -> list[dict[str, Any]]:
    calls: Any = message.get("tool_calls")
    return list(calls or ())


def _with_calls(content: str, calls: Sequence[Mapping[str, Any]], tool_format: ToolCallFormat) -> str:
    named = [(call["function"]["name"], arguments_text(call["function"]["arguments"])) for call in calls]
    return "\n".join(filter(None, [content, tool_format.write(*named) if named else ""]))


def _describe(
    tools: Sequence[Mapping[str, Any]], tool_format: ToolCallFormat, messages: list[dict[str, object]]
) -> None:
    functions = "\n".join(json_text(_essence(tool)) for tool in tools)
    text = f"You can call these functions:\n{functions}\nTo call one, answer with exactly this: {tool_format.example()}"
    if messages and messages[0].get("role") == "system":
        messages[0]["content"] = f"{messages[0]['content']}\n\n{text}"
    else:
        messages.insert(0, {"role": "system", "content": text})
