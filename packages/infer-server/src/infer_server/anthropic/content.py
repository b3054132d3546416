"""The messages of Anthropic's API and their blocks, and the conversation that they make."""

from collections.abc import Iterator
from typing import Annotated, Any

import msgspec

from infer_engine.protocol import ChatMessage, ToolCall
from infer_server.api.carried_thinking import thinking_in
from infer_server.api.fields import described
from infer_server.api.history import check_not_empty, omitted, read_arguments, with_call_ids
from infer_server.api.system_texts import without_billing_header
from infer_server.api.validation import no_text, wrong_value
from infer_server.errors import ApiError, missing, shorten
from infer_server.http.places import validation_error

_ROLES = ("user", "assistant", "system")
_DROPPED_ENDINGS = ("_tool_use", "_tool_result")


class Block(msgspec.Struct, frozen=True, kw_only=True):
    """A block of a message; which fields it has depends on its type. Unknown ones are passed over."""

    type: Annotated[
        str,
        described(
            "`text`, `document`, `search_result`, `thinking`, `tool_use`, `tool_result`, `tool_reference` or "
            "`compaction`."
        ),
    ]
    text: Annotated[str | None, described("Of a text.")] = None
    thinking: Annotated[str | None, described("Of a block of thinking.")] = None
    signature: Annotated[Any, described("Of a block of thinking, whose text is read from it where it has none.")] = None
    id: Annotated[str | None, described("Of a call, which its result names.")] = None
    name: Annotated[str | None, described("Of a called tool.")] = None
    input: Annotated[dict[str, Any] | str | None, described("The arguments of a call.")] = None
    tool_use_id: Annotated[str | None, described("The call of a result.")] = None
    content: Annotated[Any, described("The result, or what was found or compacted: text, or blocks of text.")] = None
    tool_name: Annotated[str | None, described("The tool that a search for tools found.")] = None
    is_error: Annotated[bool | None, described("The call failed; the model is told.")] = None
    source: Annotated[Any, described("Of a document: `text` or `content`. Of a result: its place.")] = None
    title: Annotated[str | None, described("Of a document or a result of a search; the model reads it.")] = None
    context: Annotated[str | None, described("What else the model reads of a document.")] = None


SystemField = str | list[Block] | None


class MessageField(msgspec.Struct, frozen=True, kw_only=True):
    """One message."""

    role: Annotated[str, described("The author.", enum=list(_ROLES))]
    content: Annotated[str | list[Block] | None, described("Text, or blocks; null in an empty answer only.")]


def conversation_of(system: SystemField, messages: list[MessageField]) -> tuple[ChatMessage, ...]:
    """Return the conversation that the chat template gets.

    Raises:
        ApiError: 400: no message, an unknown role, a block that is not supported or incomplete.
    """
    check_not_empty(messages)
    said = _system_text(system, "system")
    first = [ChatMessage(role="system", content=said)] if said else []
    rest = (each for index, message in enumerate(messages) for each in _of_message(message, f"messages[{index}]"))
    return (*first, *with_call_ids(rest))


def check_continued(messages: list[MessageField]) -> None:
    """Refuse to continue a last message of the assistant that has calls: their results come next.

    Raises:
        ApiError: 400.
    """
    at = f"messages[{len(messages) - 1}].content"
    blocks = messages[-1].content
    for index, block in enumerate(blocks if isinstance(blocks, list) else ()):
        if block.type == "tool_use":
            raise wrong_value(
                f"{at}[{index}]",
                f"`{at}[{index}]` is a call in the last message; send its result in a message of the user.",
            )


def _of_message(message: MessageField, at: str) -> Iterator[ChatMessage]:
    content = message.content
    match message.role:
        case "assistant":
            blocks = content if isinstance(content, list) else [Block(type="text", text=content or "")]
            yield _of_assistant(blocks, at)
        case "user" | "system" if content is None:
            raise ApiError(
                400,
                f"`{at}.content` is null; send text, which may be empty.",
                code="invalid_type",
                param=f"{at}.content",
            )
        case "user" if isinstance(content, list):
            yield from _of_user(content, at)
        case "user":
            yield ChatMessage(role="user", content=_text(content or "", f"{at}.content"))
        case "system":
            yield ChatMessage(role="system", content=_system_text(content, f"{at}.content"))
        case _:
            raise wrong_value(
                f"{at}.role", f"`{at}.role` is {shorten(message.role, 40)!r}; send one of {', '.join(_ROLES)}."
            )


def _of_user(blocks: list[Block], at: str) -> Iterator[ChatMessage]:
    """Yield the results of tools, each a message of its own, and then the text."""
    texts, has_results = [], False
    for index, block in enumerate(blocks):
        place = f"{at}.content[{index}]"
        if block.type == "tool_result":
            has_results = True
            text = _result_text(block.content, f"{place}.content")
            text = f"Error: {text}" if block.is_error else text
            yield ChatMessage(role="tool", content=text, tool_call_id=block.tool_use_id)
        elif not _is_dropped(block):
            texts.append(_words_of(block, place))
    if texts or not has_results:
        yield ChatMessage(role="user", content="".join(texts))


def _of_assistant(blocks: list[Block], at: str) -> ChatMessage:
    texts, thoughts, calls = [], [], []
    for index, block in enumerate(blocks):
        place = f"{at}.content[{index}]"
        match block.type:
            case "tool_use":
                if block.name is None:
                    raise missing(f"{place}.name")
                calls.append(ToolCall(id=block.id or "", name=block.name, arguments=read_arguments(block.input)))
            case "thinking":
                thoughts.append(block.thinking or thinking_in(block.signature))
            case "compaction":
                texts.append(_result_text(block.content, f"{place}.content"))
            case _ if not _is_dropped(block):
                texts.append(_text_of(block, place))
    return ChatMessage(
        role="assistant",
        content="".join(texts),
        reasoning="".join(thoughts) or None,
        tool_calls=tuple(calls),
    )


def _is_dropped(block: Block) -> bool:
    """Return whether a block of the history is thinking that nobody reads, or what a provider's own servers did."""
    return block.type in ("thinking", "redacted_thinking") or block.type.endswith(_DROPPED_ENDINGS)


def _result_text(content: Any, at: str) -> str:
    """Return the text of a result, which clients also send as blocks of other types than those of messages."""
    if content is None or isinstance(content, str):
        return content or ""
    try:
        blocks = msgspec.convert(content, list[Block])
    except msgspec.ValidationError as error:
        raise validation_error(error, at=at) from None
    between = "\n" if any(block.type == "tool_reference" for block in blocks) else ""
    return between.join(_result_block_text(block, f"{at}[{index}]") for index, block in enumerate(blocks))


def _result_block_text(block: Block, at: str) -> str:
    """Return the text of a block of a result; what a search for tools found are their names."""
    match block:
        case Block(type="tool_reference"):
            return block.tool_name or ""
        case Block(type="image"):
            return omitted("image")
        case Block(type="document", source={"type": "base64" | "url" | "file"}):
            return omitted("file")
        case _:
            return _words_of(block, at)


def _words_of(block: Block, at: str) -> str:
    """Return the text of a block, or of a document or a found text, with what is said of it."""
    source = block.source
    match block.type:
        case "document" if isinstance(source, dict):
            kind = str(source.get("type"))
            field = {"text": "data", "content": "content"}.get(kind)
            if field is None:
                raise no_text(f"{at}.source", kind, send="text")
            about, text = block.context, _plain_text(source.get(field), f"{at}.source.{field}")
        case "search_result":
            about = source if isinstance(source, str) else None
            text = _plain_text(block.content, f"{at}.content")
        case _:
            return _text_of(block, at)
    return "".join(f"{each}\n\n" for each in (block.title, about, text) if each)


def _plain_text(content: Any, at: str) -> str:
    try:
        return _text(msgspec.convert(content, str | list[Block]), at)
    except msgspec.ValidationError as error:
        raise validation_error(error, at=at) from None


def _system_text(content: SystemField, at: str) -> str:
    """Return what the system says, without what is not for the model."""
    if isinstance(content, list):
        texts = (_text_of(block, f"{at}[{index}]") for index, block in enumerate(content) if not _is_dropped(block))
        return "".join(map(without_billing_header, texts))
    return without_billing_header(content or "")


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
