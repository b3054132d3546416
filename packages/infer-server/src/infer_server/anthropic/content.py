"""The messages of Anthropic's API and their blocks, and the conversation that they make."""

from collections.abc import Iterator
from typing import Annotated, Any

import msgspec

from infer_engine.protocol import ChatMessage, ToolCall
from infer_server.errors import ApiError, missing, shorten
from infer_server.generation.tools import check_tool_name
from infer_server.openai.fields import described
from infer_server.openai.validation import no_text, out_of_range

MAX_MESSAGES = 2048
_ROLES = ("user", "assistant", "system")
_DROPPED_ENDINGS = ("_tool_use", "_tool_result")


class Block(msgspec.Struct, frozen=True, kw_only=True):
    """A block of a message; which fields it has depends on its type."""

    type: Annotated[str, described("`text`, `thinking`, `tool_use` or `tool_result`.")]
    text: Annotated[str | None, described("Of a text.")] = None
    thinking: Annotated[str | None, described("Of a block of thinking.")] = None
    id: Annotated[str | None, described("Of a call, which its result names.")] = None
    name: Annotated[str | None, described("Of a called tool.")] = None
    input: Annotated[dict[str, Any] | None, described("The arguments of a call.")] = None
    tool_use_id: Annotated[str | None, described("The call of a result.")] = None
    content: Annotated[Any, described("The result: text, or blocks of text.")] = None
    is_error: Annotated[bool | None, described("The call failed; the model is told.")] = None


SystemField = str | list[Block] | None


class MessageField(msgspec.Struct, frozen=True, kw_only=True):
    """One message."""

    role: Annotated[str, described("The author.", enum=list(_ROLES))]
    content: Annotated[str | list[Block], described("Text, or blocks.")]


def conversation_of(system: SystemField, messages: list[MessageField]) -> tuple[ChatMessage, ...]:
    """Return the conversation that the chat template gets.

    Raises:
        ApiError: 400: no message or too many, an unknown role, a block that is not supported or incomplete.
    """
    if not messages:
        raise ApiError(400, "`messages` is empty; send at least one message.", code="empty_prompt", param="messages")
    if len(messages) > MAX_MESSAGES:
        raise out_of_range("messages", f"`messages` has {len(messages)} messages; send at most {MAX_MESSAGES}.")
    first = [] if not system else [ChatMessage(role="system", content=_text(system, "system"))]
    rest = [each for index, message in enumerate(messages) for each in _of_message(message, f"messages[{index}]")]
    return (*first, *rest)


def _of_message(message: MessageField, at: str) -> Iterator[ChatMessage]:
    content = message.content
    match message.role:
        case "assistant":
            yield _of_assistant([Block(type="text", text=content)] if isinstance(content, str) else content, at)
        case "user" if not isinstance(content, str):
            yield from _of_user(content, at)
        case "user" | "system":
            yield ChatMessage(role=message.role, content=_text(content, f"{at}.content"))
        case _:
            raise out_of_range(
                f"{at}.role", f"`{at}.role` is {shorten(message.role, 40)!r}; send one of {', '.join(_ROLES)}."
            )


def _of_user(blocks: list[Block], at: str) -> Iterator[ChatMessage]:
    """Yield the results of tools, each a message of its own, and then the text."""
    texts, has_results = [], False
    for index, block in enumerate(blocks):
        place = f"{at}.content[{index}]"
        if block.type == "tool_result":
            has_results = True
            if not block.tool_use_id:
                raise missing(f"{place}.tool_use_id")
            text = "" if block.content is None else _text(_result_blocks(block.content, place), f"{place}.content")
            text = f"Error: {text}" if block.is_error else text
            yield ChatMessage(role="tool", content=text, tool_call_id=block.tool_use_id)
        elif not _is_dropped(block):
            texts.append(_text_of(block, place))
    if texts or not has_results:
        yield ChatMessage(role="user", content="".join(texts))


def _of_assistant(blocks: list[Block], at: str) -> ChatMessage:
    texts, thoughts, calls = [], [], []
    for index, block in enumerate(blocks):
        place = f"{at}.content[{index}]"
        match block.type:
            case "tool_use":
                if not block.id or block.name is None:
                    raise missing(f"{place}.{'name' if block.id else 'id'}")
                check_tool_name(block.name, param=f"{place}.name")
                calls.append(ToolCall(id=block.id, name=block.name, arguments=block.input or {}))
            case "thinking":
                thoughts.append(block.thinking or "")
            case _ if not _is_dropped(block):
                texts.append(_text_of(block, place))
    return ChatMessage(
        role="assistant",
        content="".join(texts),
        reasoning="".join(thoughts) or None,
        tool_calls=tuple(calls),
    )


def _is_dropped(block: Block) -> bool:
    """Return whether a block of the history is about what a provider's own servers did, such as `server_tool_use`."""
    return block.type == "redacted_thinking" or block.type.endswith(_DROPPED_ENDINGS)


def _result_blocks(content: Any, at: str) -> str | list[Block]:
    """Return the content of a result, which clients also send as blocks of other types than those of messages."""
    if isinstance(content, str):
        return content
    try:
        return msgspec.convert(content, list[Block])
    except msgspec.ValidationError:
        raise out_of_range(f"{at}.content", f"`{at}.content` must be text, or a list of blocks of text.") from None


def _text(content: str | list[Block], at: str) -> str:
    if isinstance(content, str):
        return content
    return "".join(_text_of(block, f"{at}[{index}]") for index, block in enumerate(content))


def _text_of(block: Block, at: str) -> str:
    if block.type != "text":
        raise no_text(at, block.type, send="text")
    if block.text is None:
        raise missing(f"{at}.text")
    return block.text
