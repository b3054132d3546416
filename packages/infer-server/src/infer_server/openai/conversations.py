"""A conversation as clients send it, and as the engine takes it. Knows messages; knows no template.

Contents are text, whole or in parts; nothing that a part refers to is ever fetched.
"""

from collections.abc import Iterator
from typing import Annotated, Any

import msgspec

from infer_engine.protocol import ChatMessage, ChatPrompt
from infer_server.errors import ApiError, shorten
from infer_server.openai.refusals import Neutral, check_neutral, out_of_range
from infer_server.openai.sampling_fields import described

MAX_MESSAGES = 2048

# OpenAI's newer word for the same thing; checkpoints' templates know the older one.
_TEMPLATE_ROLES = {"system": "system", "developer": "system", "user": "user", "assistant": "assistant"}
_TOOL_ROLES = ("tool", "function")
_ROLES = ", ".join(f"`{role}`" for role in _TEMPLATE_ROLES)


class ContentPart(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A part of a message; the fields of other types than `text` are here to be refused by name."""

    type: Annotated[str, described("Only `text`.", enum=["text"])]
    text: Annotated[str | None, described("Needed.", type="string")] = None
    prompt_cache_breakpoint: Annotated[Any, described("Taken, and without effect.")] = None
    image_url: Annotated[Any, described("Only null.", enum=[None])] = None
    input_audio: Annotated[Any, described("Only null.", enum=[None])] = None
    file: Annotated[Any, described("Only null.", enum=[None])] = None
    refusal: Annotated[Any, described("Only null.", enum=[None])] = None
    video_url: Annotated[Any, described("Only null.", enum=[None])] = None
    audio_url: Annotated[Any, described("Only null.", enum=[None])] = None


# What is needed may be missing while decoding, so that what a client did send is refused first, by name.
WholePart = Annotated[ContentPart, msgspec.Meta(extra_json_schema={"required": ["type", "text"]})]


class Message(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One message of a conversation. An answer of this server can be sent back as it came."""

    role: Annotated[str, described("Whose it is; `developer` is the same as `system`.", enum=sorted(_TEMPLATE_ROLES))]
    content: Annotated[
        str | list[WholePart] | None,
        described("Text, or parts of it, which are joined.", type=["string", "array"]),
    ] = None
    name: Annotated[str | None, described("Taken, and without effect: templates are not told.")] = None
    refusal: Annotated[Any, described("Only null.", enum=[None])] = None
    annotations: Annotated[Any, described("Only null or [].", enum=[None, []])] = None
    audio: Annotated[Any, described("Only null.", enum=[None])] = None
    tool_calls: Annotated[Any, described("Only null or [].", enum=[None, []])] = None
    tool_call_id: Annotated[Any, described("Only null.", enum=[None])] = None
    function_call: Annotated[Any, described("Only null.", enum=[None])] = None


WholeMessage = Annotated[Message, msgspec.Meta(extra_json_schema={"required": ["role", "content"]})]

_NEUTRAL: dict[str, Neutral] = {
    "refusal": ((), "null"),
    "annotations": (([],), "null"),
    "audio": ((), "null"),
    "tool_calls": (([],), "null"),
    "tool_call_id": ((), "null"),
    "function_call": ((), "null"),
}

_NO_OTHERS = (None,) * 6
_OTHER_CONTENTS: dict[str, Neutral] = dict.fromkeys(
    ("image_url", "input_audio", "file", "refusal", "video_url", "audio_url"), ((), "null")
)


def chat_prompt(messages: list[Message], *, add_generation_prompt: bool) -> ChatPrompt:
    """Return the conversation that `messages` are.

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
    check_neutral(message, _NEUTRAL, at=f"{at}.")
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
    """Yield the texts; a body can hold hundreds of thousands, so that what is fine costs next to nothing."""
    for index, part in enumerate(parts):
        if part.type != "text":
            message = f"`{at}[{index}]` is of type `{shorten(part.type, 40)}`; send text only: nothing is ever fetched."
            raise ApiError(400, message, code="unsupported_value", param=f"{at}[{index}]")
        if part.text is None:
            param = f"{at}[{index}].text"
            raise ApiError(400, f"`{param}` is missing; send it.", code="missing_field", param=param)
        others = (part.image_url, part.input_audio, part.file, part.refusal, part.video_url, part.audio_url)
        if others != _NO_OTHERS:
            check_neutral(part, _OTHER_CONTENTS, at=f"{at}[{index}].")
        yield part.text
