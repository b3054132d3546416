"""The messages of a conversation as clients send them, and the `ChatPrompt` that they make.

The content of a message is text, or a list of text parts. URLs are never fetched.
"""

from collections.abc import Iterator
from operator import attrgetter
from typing import Annotated, Any

import msgspec

from infer_engine.protocol import ChatMessage, ChatPrompt
from infer_server.errors import ApiError, missing, shorten
from infer_server.generation.tools import check_results
from infer_server.openai.chat.tool_fields import ToolCallField, tool_calls
from infer_server.openai.fields import check_restricted, described, restricted, restricted_names
from infer_server.openai.validation import no_text, out_of_range

MAX_MESSAGES = 2048

# `developer` is OpenAI's newer name for `system`; chat templates use the older one.
_TEMPLATE_ROLES = {
    "system": "system",
    "developer": "system",
    "user": "user",
    "assistant": "assistant",
    "tool": "tool",
}
_ROLES = ", ".join(f"`{role}`" for role in _TEMPLATE_ROLES)


class ContentPart(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A part of a message. The fields of unsupported types, of other APIs too, are here so that errors name them."""

    type: Annotated[str, described("Only `text`.", enum=["text"])]
    text: Annotated[str | None, described("Required.", type="string")] = None
    prompt_cache_breakpoint: Annotated[Any, described("Accepted without effect.")] = None
    image_url: Annotated[Any, restricted("Only null.")] = None
    input_audio: Annotated[Any, restricted("Only null.")] = None
    file: Annotated[Any, restricted("Only null.")] = None
    refusal: Annotated[Any, restricted("Only null.")] = None
    video_url: Annotated[Any, restricted("Only null.")] = None
    audio_url: Annotated[Any, restricted("Only null.")] = None
    image: Annotated[Any, restricted("Only null.")] = None
    audio: Annotated[Any, restricted("Only null.")] = None
    video: Annotated[Any, restricted("Only null.")] = None
    source: Annotated[Any, restricted("Only null.")] = None
    detail: Annotated[Any, restricted("Only null.")] = None
    file_id: Annotated[Any, restricted("Only null.")] = None
    file_data: Annotated[Any, restricted("Only null.")] = None
    file_url: Annotated[Any, restricted("Only null.")] = None
    filename: Annotated[Any, restricted("Only null.")] = None


# Decoding allows that `text` and `content` are missing, so that the error for an unsupported field comes first.
DocumentedPart = Annotated[ContentPart, msgspec.Meta(extra_json_schema={"required": ["type", "text"]})]


class Message(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One message of a conversation. A reply's message can be sent back unchanged."""

    role: Annotated[str, described("The author; `developer` is the same as `system`.", enum=sorted(_TEMPLATE_ROLES))]
    content: Annotated[
        str | list[DocumentedPart] | None,
        described("Text, or parts of it, which are joined. May be null beside `tool_calls`."),
    ] = None
    tool_calls: Annotated[list[ToolCallField] | None, described("The calls of an assistant's message.")] = None
    tool_call_id: Annotated[str | None, described("The call whose result a `tool` message has.")] = None
    reasoning_content: Annotated[str | None, described("What the assistant thought.")] = None
    reasoning: Annotated[str | None, described("The same under another name.")] = None
    name: Annotated[str | None, described("Accepted without effect: chat templates do not get it.")] = None
    refusal: Annotated[Any, restricted("Only null.")] = None
    annotations: Annotated[Any, restricted("Only null or [].", allow=([],))] = None
    audio: Annotated[Any, restricted("Only null.")] = None
    function_call: Annotated[Any, restricted("Only null.")] = None


DocumentedMessage = Annotated[Message, msgspec.Meta(extra_json_schema={"required": ["role"]})]

_other_contents = attrgetter(*restricted_names(ContentPart))
_NO_OTHER_CONTENTS = (None,) * len(restricted_names(ContentPart))


def chat_prompt(messages: list[Message], *, add_generation_prompt: bool = True, **settings: Any) -> ChatPrompt:
    """Return the prompt for `messages`; `settings` are the other attributes of `ChatPrompt`.

    Raises:
        ApiError: 400: there is no message or there are more than 2,048, a role is unknown or not supported, a content
            is missing or is not text, or a tool's result belongs to no call.
    """
    if not messages:
        raise ApiError(400, "`messages` is empty; send at least one message.", code="empty_prompt", param="messages")
    if len(messages) > MAX_MESSAGES:
        raise out_of_range("messages", f"`messages` has {len(messages)} messages; send at most {MAX_MESSAGES}.")
    read = tuple(_message(message, f"messages[{index}]") for index, message in enumerate(messages))
    check_results(read, param="messages")
    return ChatPrompt(messages=read, add_generation_prompt=add_generation_prompt, **settings)


def _message(message: Message, at: str) -> ChatMessage:
    if message.role == "function":
        words = f"`{at}.role` is `function`, which is not supported; send `tool`, with `tool_call_id`."
        raise ApiError(400, words, code="unsupported_value", param=f"{at}.role")
    if message.role not in _TEMPLATE_ROLES:
        raise out_of_range(f"{at}.role", f"`{at}.role` is {shorten(message.role, 40)!r}; it must be one of {_ROLES}.")
    check_restricted(message, prefix=f"{at}.")
    _check_fields_of_role(message, at)
    calls = tool_calls(message.tool_calls, f"{at}.tool_calls")
    return ChatMessage(
        role=_TEMPLATE_ROLES[message.role],
        content="" if message.content is None and calls else _text(message.content, f"{at}.content"),
        reasoning=message.reasoning_content if message.reasoning is None else message.reasoning,
        tool_calls=calls,
        tool_call_id=message.tool_call_id,
    )


def _check_fields_of_role(message: Message, at: str) -> None:
    """Refuse fields that belong to another role, which the template would leave out."""
    if message.role == "tool" and not message.tool_call_id:
        raise missing(f"{at}.tool_call_id")
    if message.role != "tool" and message.tool_call_id is not None:
        raise out_of_range(f"{at}.tool_call_id", f"`{at}.tool_call_id` is for messages of the role `tool` only.")
    if message.role != "assistant":
        for name in ("tool_calls", "reasoning_content", "reasoning"):
            if getattr(message, name):
                raise out_of_range(f"{at}.{name}", f"`{at}.{name}` is for messages of the role `assistant` only.")


def _text(content: str | list[ContentPart] | None, at: str) -> str:
    match content:
        case None:
            raise ApiError(400, f"`{at}` is null; send text, which may be empty.", code="invalid_type", param=at)
        case str():
            return content
        case _:
            return "".join(_part_texts(content, at))


def _part_texts(parts: list[ContentPart], at: str) -> Iterator[str]:
    """Yield the text of each part. A body can have hundreds of thousands of parts, so each must cost little."""
    for index, part in enumerate(parts):
        if part.type != "text":
            raise no_text(f"{at}[{index}]", part.type, send="text", param=f"{at}[{index}]")
        if part.text is None:
            param = f"{at}[{index}].text"
            raise ApiError(400, f"`{param}` is missing; send it.", code="missing_field", param=param)
        if _other_contents(part) != _NO_OTHER_CONTENTS:
            check_restricted(part, prefix=f"{at}[{index}].")
        yield part.text
