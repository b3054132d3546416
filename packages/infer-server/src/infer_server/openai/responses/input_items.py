"""The `input` of a response as clients send it, and the messages that it makes.

The items of one answer become one message of the assistant:

```
reasoning, message, function_call, function_call | function_call_output, function_call_output | message
 one assistant message with two calls            | two tool messages                          | user message
```
"""

from collections.abc import Iterator
from typing import Annotated, Any, Literal

import msgspec

from infer_engine.protocol import ChatMessage, ToolCall
from infer_server.errors import ApiError, missing, shorten
from infer_server.generation.tools import TOOL_NAME_PATTERN, check_results, check_tool_name, read_arguments
from infer_server.openai.fields import described
from infer_server.openai.responses.typed_objects import decode_object, dropped_object, object_type
from infer_server.openai.validation import no_text, out_of_range, unsupported
from infer_server.openapi import schema_of

MAX_ITEMS = 4096

# `developer` is OpenAI's newer name for `system`; chat templates use the older one.
_TEMPLATE_ROLES = {"system": "system", "developer": "system", "user": "user", "assistant": "assistant"}
_TEXT_PARTS = ("input_text", "output_text", "text")


class ContentPart(msgspec.Struct, frozen=True, kw_only=True):
    """A part of a message, or of a call's result."""

    type: Annotated[str, described("Text only.", enum=list(_TEXT_PARTS))]
    text: Annotated[str | None, described("Required.", type="string")] = None


# Decoding allows that `text` is missing, so that the error for an unsupported type comes first.
DocumentedPart = Annotated[ContentPart, msgspec.Meta(extra_json_schema={"required": ["type", "text"]})]


class MessageItem(msgspec.Struct, frozen=True, kw_only=True):
    """A message. A reply's message can be sent back unchanged."""

    type: Literal["message"] | None = None
    role: Annotated[str, described("The author; `developer` is the same as `system`.", enum=sorted(_TEMPLATE_ROLES))]
    content: Annotated[str | list[DocumentedPart], described("Text, or parts of it, which are joined.")]


class FunctionCallItem(msgspec.Struct, frozen=True, kw_only=True):
    """A call of an earlier answer, as it came."""

    type: Literal["function_call"]
    call_id: Annotated[str, described("What the item with its result names.", minLength=1)]
    name: Annotated[str, described("The function's name.", pattern=TOOL_NAME_PATTERN)]
    arguments: Annotated[str, described("The JSON text of an object.")]


class FunctionCallOutputItem(msgspec.Struct, frozen=True, kw_only=True):
    """The result of a call that an item before it makes."""

    type: Literal["function_call_output"]
    call_id: Annotated[str, described("The call.", minLength=1)]
    output: Annotated[str | list[DocumentedPart], described("Text, or parts of it, which are joined.")]


class ReasoningPart(msgspec.Struct, frozen=True, kw_only=True):
    """A part of what the assistant thought."""

    text: str


class ReasoningItem(msgspec.Struct, frozen=True, kw_only=True):
    """What the assistant thought before the next items. Encrypted content cannot be read, and has no effect."""

    type: Literal["reasoning"]
    content: Annotated[list[ReasoningPart] | None, described("Its text.")] = None
    summary: Annotated[list[ReasoningPart] | None, described("Used if there is no `content`.")] = None


_ITEMS: dict[str, type[MessageItem | FunctionCallItem | FunctionCallOutputItem | ReasoningItem]] = {
    "message": MessageItem,
    "function_call": FunctionCallItem,
    "function_call_output": FunctionCallOutputItem,
    "reasoning": ReasoningItem,
}
_REFERENCE = "item_reference"
_MISPLACED_PARTS = ("input_text", "output_text", "text", "input_image", "input_audio", "input_file", "image_url")

INPUT = described(
    "A user's text, or the conversation so far.",
    oneOf=[
        {"type": "string"},
        {
            "type": "array",
            "minItems": 1,
            "maxItems": MAX_ITEMS,
            "items": {
                "anyOf": [*map(schema_of, _ITEMS.values()), dropped_object([*_ITEMS, _REFERENCE, *_MISPLACED_PARTS])]
            },
        },
    ],
)


def conversation_of(given: str | list[dict[str, Any]], *, instructions: str | None) -> tuple[ChatMessage, ...]:
    """Return the messages of an input, after the `instructions`.

    The system messages at the beginning become one, `instructions` first: some templates refuse a second one, others
    leave it out, and coding agents send two.

    Raises:
        ApiError: 400: there is no message, or too many items, or an item is wrong or not supported.
    """
    messages = [ChatMessage(role="user", content=given)] if isinstance(given, str) else _messages(given)
    check_results(messages, param="input")
    leading = _num_leading_system(messages)
    texts = [instructions] if instructions else []
    texts += [message.content for message in messages[:leading]]
    system = [ChatMessage(role="system", content="\n\n".join(texts))] if texts else []
    return (*system, *messages[leading:])


def _messages(given: list[dict[str, Any]]) -> list[ChatMessage]:
    if len(given) > MAX_ITEMS:
        raise out_of_range("input", f"`input` has {len(given)} items; send at most {MAX_ITEMS}.")
    conversation = _Conversation()
    for index, item in enumerate(given):
        conversation.add(item, f"input[{index}]")
    messages = conversation.end()
    if not messages:
        raise ApiError(400, "`input` has no message; send at least one.", code="empty_prompt", param="input")
    return messages


def _num_leading_system(messages: list[ChatMessage]) -> int:
    roles = [message.role for message in messages]
    return next((index for index, role in enumerate(roles) if role != "system"), len(roles))


class _Conversation:
    """Collects items as messages. The assistant's message is open until an item of somebody else comes."""

    def __init__(self) -> None:
        self._messages: list[ChatMessage] = []
        self._texts: list[str] = []
        self._calls: list[ToolCall] = []
        self._reasoning: list[str] = []

    def add(self, item: dict[str, Any], at: str) -> None:
        """Take the item at the place `at`.

        Raises:
            ApiError: 400: it is wrong or not supported.
        """
        kind = object_type(item, at=at)
        if kind is None:
            kind = "message"
        if kind == _REFERENCE:
            raise unsupported(f"{at}.type", kind, send="the item itself: the server keeps none")
        if kind in _MISPLACED_PARTS:
            raise _misplaced(kind, at)
        if kind not in _ITEMS:
            return
        match decode_object(item, _ITEMS[kind], at=at):
            case MessageItem(role="assistant", content=content):
                self._add_text(_text(content, f"{at}.content"))
            case MessageItem(role=role, content=content):
                self._close()
                text = _text(content, f"{at}.content")
                self._messages.append(ChatMessage(role=_template_role(role, at), content=text))
            case FunctionCallItem() as call:
                self._calls.append(_call(call, at))
            case FunctionCallOutputItem(call_id=call_id, output=output):
                self._close()
                self._messages.append(_result(call_id, _text(output, f"{at}.output"), at))
            case ReasoningItem() as reasoning:
                self._add_reasoning(reasoning)

    def end(self) -> list[ChatMessage]:
        """Return the messages, after the last item."""
        self._close()
        return self._messages

    def _add_text(self, text: str) -> None:
        """Add a message of the assistant: a new one, unless calls are still without results, which must follow them."""
        if self._texts and not self._calls:
            self._close()
        self._texts.append(text)

    def _add_reasoning(self, item: ReasoningItem) -> None:
        if self._texts and not self._calls:
            self._close()
        texts = [part.text for part in item.content or item.summary or ()]
        if any(texts):
            self._reasoning.append("\n\n".join(texts))

    def _close(self) -> None:
        """End the assistant's message. Reasoning that led to nothing is left out."""
        if self._texts or self._calls:
            self._messages.append(
                ChatMessage(
                    role="assistant",
                    content="".join(self._texts),
                    reasoning="\n\n".join(self._reasoning) or None,
                    tool_calls=tuple(self._calls),
                )
            )
        self._texts, self._calls, self._reasoning = [], [], []


def _template_role(role: str, at: str) -> str:
    if role not in _TEMPLATE_ROLES:
        roles = ", ".join(f"`{known}`" for known in _TEMPLATE_ROLES)
        raise out_of_range(f"{at}.role", f"`{at}.role` is {shorten(role, 40)!r}; it must be one of {roles}.")
    return _TEMPLATE_ROLES[role]


def _call(item: FunctionCallItem, at: str) -> ToolCall:
    if not item.call_id:
        raise missing(f"{at}.call_id")
    check_tool_name(item.name, param=f"{at}.name")
    return ToolCall(id=item.call_id, name=item.name, arguments=read_arguments(item.arguments, param=f"{at}.arguments"))


def _result(call_id: str, text: str, at: str) -> ChatMessage:
    if not call_id:
        raise missing(f"{at}.call_id")
    return ChatMessage(role="tool", content=text, tool_call_id=call_id)


def _misplaced(kind: str, at: str) -> ApiError:
    if kind not in _TEXT_PARTS:
        return no_text(at, kind, send="input_text")
    message = f"`{at}.type` is `{kind}`, which is a part of a message; send it in the `content` of a message."
    return ApiError(400, message, code="unsupported_value", param=f"{at}.type")


def _text(content: str | list[ContentPart], at: str) -> str:
    return content if isinstance(content, str) else "".join(_part_texts(content, at))


def _part_texts(parts: list[ContentPart], at: str) -> Iterator[str]:
    """Yield the text of each part. A body can have hundreds of thousands of parts, so each must cost little."""
    for index, part in enumerate(parts):
        if part.type not in _TEXT_PARTS:
            raise no_text(f"{at}[{index}]", part.type, send="input_text")
        if part.text is None:
            raise missing(f"{at}[{index}].text")
        yield part.text
