"""The messages of a conversation as clients send them, and the `ChatPrompt` that they make.

The content of a message is text, or a list of text parts. URLs are never fetched.
"""

from collections.abc import Iterator
from operator import attrgetter
from typing import Annotated, Any

import msgspec

from infer_engine.protocol import ChatMessage, ChatPrompt
from infer_server.errors import ApiError, shorten
from infer_server.openai.fields import check_restricted, described, restricted, restricted_names
from infer_server.openai.validation import out_of_range

MAX_MESSAGES = 2048

# `developer` is OpenAI's newer name for `system`; chat templates use the older one.
_TEMPLATE_ROLES = {"system": "system", "developer": "system", "user": "user", "assistant": "assistant"}
_TOOL_ROLES = ("tool", "function")
_ROLES = ", ".join(f"`{role}`" for role in _TEMPLATE_ROLES)


class ContentPart(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A part of a message. The fields of unsupported types are here so that errors name them."""

    type: Annotated[str, described("Only `text`.", enum=["text"])]
    text: Annotated[str | None, described("Required.", type="string")] = None
    prompt_cache_breakpoint: Annotated[Any, described("Accepted without effect.")] = None
    image_url: Annotated[Any, restricted("Only null.")] = None
    input_audio: Annotated[Any, restricted("Only null.")] = None
    file: Annotated[Any, restricted("Only null.")] = None
    refusal: Annotated[Any, restricted("Only null.")] = None
    video_url: Annotated[Any, restricted("Only null.")] = None
    audio_url: Annotated[Any, restricted("Only null.")] = None


# Decoding allows that `text` and `content` are missing, so that the error for an unsupported field comes first.
DocumentedPart = Annotated[ContentPart, msgspec.Meta(extra_json_schema={"required": ["type", "text"]})]


class Message(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One message of a conversation. A reply's message can be sent back unchanged."""

    role: Annotated[str, described("The author; `developer` is the same as `system`.", enum=sorted(_TEMPLATE_ROLES))]
    content: Annotated[
        str | list[DocumentedPart] | None,
        described("Text, or parts of it, which are joined.", type=["string", "array"]),
    ] = None
    name: Annotated[str | None, described("Accepted without effect: chat templates do not get it.")] = None
    refusal: Annotated[Any, restricted("Only null.")] = None
    annotations: Annotated[Any, restricted("Only null or [].", allow=([],))] = None
    audio: Annotated[Any, restricted("Only null.")] = None
    tool_calls: Annotated[Any, restricted("Only null or [].", allow=([],))] = None
    tool_call_id: Annotated[Any, restricted("Only null.")] = None
    function_call: Annotated[Any, restricted("Only null.")] = None


DocumentedMessage = Annotated[Message, msgspec.Meta(extra_json_schema={"required": ["role", "content"]})]

_other_contents = attrgetter(*restricted_names(ContentPart))
_NO_OTHER_CONTENTS = (None,) * len(restricted_names(ContentPart))


def chat_prompt(messages: list[Message], *, add_generation_prompt: bool) -> ChatPrompt:
    """Return the prompt for `messages`.

    Raises:
        ApiError: 400: there is no message or there are more than 2,048, a role is unknown or not supported, a content
            is missing or is not text.
    """
    if not messages:
        raise ApiError(400, "`messages` is empty; send at least one message.", code="empty_prompt", param="messages")
    if len(messages) > MAX_MESSAGES:
        raise out_of_range("messages", f"`messages` has {len(messages)} messages; send at most {MAX_MESSAGES}.")
    return ChatPrompt(
        messages=tuple(_message(message, f"messages[{index}]") for index, message in enumerate(messages)),
        add_generation_prompt=add_generation_prompt,
    )


def _message(message: Message, at: str) -> ChatMessage:
    if message.role in _TOOL_ROLES:
        words = f"`{at}.role` is `{message.role}`, which is not supported; send one of {_ROLES}."
        raise ApiError(400, words, code="unsupported_value", param=f"{at}.role")
    if message.role not in _TEMPLATE_ROLES:
        raise out_of_range(f"{at}.role", f"`{at}.role` is {shorten(message.role, 40)!r}; it must be one of {_ROLES}.")
    check_restricted(message, prefix=f"{at}.")
    return ChatMessage(role=_TEMPLATE_ROLES[message.role], content=_text(message.content, f"{at}.content"))


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
            message = f"`{at}[{index}]` is of type `{shorten(part.type, 40)}`; send text only: nothing is ever fetched."
            raise ApiError(400, message, code="unsupported_value", param=f"{at}[{index}]")
        if part.text is None:
            param = f"{at}[{index}].text"
            raise ApiError(400, f"`{param}` is missing; send it.", code="missing_field", param=param)
        if _other_contents(part) != _NO_OTHER_CONTENTS:
            check_restricted(part, prefix=f"{at}[{index}].")
        yield part.text
