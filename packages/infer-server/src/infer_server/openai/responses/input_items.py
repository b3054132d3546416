"""The `input` of a response as clients send it, and the messages that it makes.

The items of one answer become one message of the assistant:

```
reasoning, message, function_call, function_call | function_call_output, function_call_output | message
 one assistant message with two calls            | two tool messages                          | user message
```
"""

from collections.abc import Iterable, Sequence
from typing import Annotated, Any, Literal

import msgspec

from infer_engine.protocol import ChatMessage, ToolCall
from infer_server.api.carried_thinking import thinking_in
from infer_server.api.fields import described
from infer_server.api.history import read_arguments, template_role, with_call_ids
from infer_server.api.validation import no_text
from infer_server.errors import ApiError
from infer_server.openai.content_parts import ContentPart, read_content, read_result
from infer_server.openai.responses.provider_items import PROVIDER_ITEMS, ProviderItem, read_provider_item
from infer_server.openai.responses.tool_fields import full_name
from infer_server.openai.typed_objects import decode_object, dropped_object, object_type
from infer_server.openapi import schema_of

# `developer` is OpenAI's newer name for `system`; chat templates use the older one.
_TEMPLATE_ROLES = {"system": "system", "developer": "system", "user": "user", "assistant": "assistant"}
_TEXT_PARTS = ("input_text", "output_text", "text")


class MessageItem(msgspec.Struct, frozen=True, kw_only=True):
    """A message. A reply's message can be sent back unchanged."""

    type: Literal["message"] | None = None
    role: Annotated[str, described("The author; `developer` is the same as `system`.", enum=sorted(_TEMPLATE_ROLES))]
    content: Annotated[
        str | list[str | ContentPart] | None, described("Text, or parts of it, which are joined. Null is no text.")
    ]


class FunctionCallItem(msgspec.Struct, frozen=True, kw_only=True):
    """A call of an earlier answer, as it came."""

    type: Literal["function_call"]
    call_id: Annotated[str | None, described("What the item with its result names.")] = None
    name: Annotated[str, described("The function's name.")]
    namespace: Annotated[str | None, described("That of the function, if it has one.")] = None
    arguments: Annotated[
        str | dict[str, Any] | None,
        described("The JSON text of an object, or the object; what a cut-off call has is taken as it is."),
    ] = None


class FunctionCallOutputItem(msgspec.Struct, frozen=True, kw_only=True):
    """The result of a call."""

    type: Literal["function_call_output"]
    call_id: Annotated[str | None, described("The call.")] = None
    name: Annotated[str | None, described("That of the called function; if left out, the call's.")] = None
    namespace: Annotated[str | None, described("That of the function, if it has one.")] = None
    output: Annotated[Any, described("Text, or parts of it, which are joined, or any JSON.")] = None


class ReasoningPart(msgspec.Struct, frozen=True, kw_only=True):
    """A part of what the assistant thought."""

    text: str | None = None


class ReasoningItem(msgspec.Struct, frozen=True, kw_only=True):
    """The assistant's thoughts before the next items. Encrypted content of other servers has no effect."""

    type: Literal["reasoning"]
    content: Annotated[list[ReasoningPart] | None, described("Its text.")] = None
    encrypted_content: Annotated[Any, described("As it came from here; used if there is no `content`.")] = None
    summary: Annotated[list[ReasoningPart] | None, described("Used if there is nothing else.")] = None


_ITEMS: dict[str, type[MessageItem | FunctionCallItem | FunctionCallOutputItem | ReasoningItem]] = {
    "message": MessageItem,
    "function_call": FunctionCallItem,
    "function_call_output": FunctionCallOutputItem,
    "reasoning": ReasoningItem,
}
_MISPLACED = (*_TEXT_PARTS, "input_image", "input_audio", "input_file", "image_url", "computer_call_output")
_REFERENCE: dict[str, Any] = {
    "type": "object",
    "description": "An item of a recent answer, by its id. One of reasoning that is not kept any more is passed over.",
    "properties": {"type": {"enum": ["item_reference", None]}, "id": {"type": "string"}},
    "required": ["id"],
}
_NOT_DROPPED = (*_ITEMS, *PROVIDER_ITEMS, *_MISPLACED, "item_reference")

INPUT = described(
    "A user's text, or the conversation so far.",
    oneOf=[
        {"type": "string"},
        {
            "type": "array",
            "minItems": 1,
            "items": {
                "anyOf": [
                    *map(schema_of, _ITEMS.values()),
                    schema_of(ProviderItem),
                    _REFERENCE,
                    dropped_object(_NOT_DROPPED),
                ]
            },
        },
    ],
)


def conversation_of(
    given: list[dict[str, Any]], *, instructions: str | None, earlier: Sequence[dict[str, Any]] = ()
) -> tuple[ChatMessage, ...]:
    """Return the messages of the items `given`, after the `instructions` and the `earlier` items.

    The system messages at the beginning become one, `instructions` first: some templates refuse a second one, others
    leave it out, and coding agents send two.

    Raises:
        ApiError: 400: there is no message, or an item is wrong or not supported.
    """
    messages = _messages(given, earlier)
    leading = _num_leading_system(messages)
    texts = [instructions] if instructions else []
    texts += [message.content or "" for message in messages[:leading]]
    system = [ChatMessage(role="system", content="\n\n".join(texts))] if texts else []
    return (*system, *messages[leading:])


def _messages(given: list[dict[str, Any]], earlier: Sequence[dict[str, Any]]) -> list[ChatMessage]:
    conversation = _Conversation()
    for item in earlier:
        conversation.add(item, "previous_response_id")
    for index, item in enumerate(given):
        conversation.add(item, f"input[{index}]")
    messages = list(with_call_ids(conversation.end()))
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
        if kind in _MISPLACED:
            raise _misplaced(kind, at)
        if kind in PROVIDER_ITEMS:
            self._add_call_and_result(*read_provider_item(item, at=at))
        if kind not in _ITEMS:
            return
        match decode_object(item, _ITEMS[kind], at=at):
            case MessageItem(role="assistant", content=content):
                said = read_content(content, f"{at}.content", is_answer=True, send="input_text", param_end=".type")
                self._add_reasoning([said.thoughts])
                self._add_text(said.text)
            case MessageItem(role=role, content=content):
                self._close()
                text = read_content(content, f"{at}.content", send="input_text", param_end=".type").text
                self._messages.append(ChatMessage(role=template_role(role, at, roles=_TEMPLATE_ROLES), content=text))
            case FunctionCallItem(call_id=call_id, name=name, namespace=namespace, arguments=given):
                name = full_name(namespace, name)
                self._calls.append(ToolCall(id=call_id or "", name=name, arguments=read_arguments(given)))
            case FunctionCallOutputItem(call_id=call_id, name=name, namespace=namespace, output=output):
                called = full_name(namespace, name) if name else None
                result = ChatMessage(role="tool", content=read_result(output), tool_call_id=call_id, name=called)
                self._add_call_and_result(None, result)
            case ReasoningItem() as reasoning:
                self._add_reasoning(_thoughts(reasoning))

    def end(self) -> list[ChatMessage]:
        """Return the messages, after the last item."""
        self._close()
        return self._messages

    def _add_text(self, text: str) -> None:
        """Add a message of the assistant: a new one, unless calls are still without results, which must follow them."""
        if self._texts and not self._calls:
            self._close()
        self._texts.append(text)

    def _add_call_and_result(self, call: ToolCall | None, result: ChatMessage | None) -> None:
        if call is not None:
            self._calls.append(call)
        if result is not None:
            self._close()
            self._messages.append(result)

    def _add_reasoning(self, texts: Iterable[str]) -> None:
        found = list(filter(None, texts))
        if found and self._texts and not self._calls:
            self._close()
        if found:
            self._reasoning.append("\n\n".join(found))

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


def _thoughts(reasoning: ReasoningItem) -> list[str]:
    """Return the texts of reasoning: its own, what its encrypted content carries, or its summary."""
    if not reasoning.content and (carried := thinking_in(reasoning.encrypted_content)):
        return [carried]
    return [part.text or "" for part in reasoning.content or reasoning.summary or ()]


def _misplaced(kind: str, at: str) -> ApiError:
    if kind not in _TEXT_PARTS:
        return no_text(at, kind, send="input_text")
    message = f"`{at}.type` is `{kind}`, which is a part of a message; send it in the `content` of a message."
    return ApiError(400, message, code="unsupported_value", param=f"{at}.type")
