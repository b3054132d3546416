"""The content of a message in OpenAI's APIs: text, or a list of parts. URLs are never fetched.

The result of a tool may be anything that JSON has, as programs return it.
"""

from operator import attrgetter
from typing import Annotated, Any

import msgspec
from msgspec import UNSET, UnsetType

from infer_server.api.fields import check_restricted, described, restricted, restricted_names
from infer_server.api.history import omitted
from infer_server.api.validation import no_text
from infer_server.errors import missing
from infer_server.http.places import validation_error
from infer_server.openapi import schema_of

_TEXTS = ("text", "input_text", "output_text")
_MEDIA = {
    "image": "image",
    "image_url": "image",
    "input_image": "image",
    "audio": "audio",
    "audio_url": "audio",
    "input_audio": "audio",
    "video": "video",
    "video_url": "video",
    "file": "file",
    "input_file": "file",
}
_THOUGHTS = ("thinking", "reasoning", "reasoning_text", "redacted_thinking")


class ContentPart(msgspec.Struct, frozen=True, kw_only=True):
    """A part of a message. Fields of unsupported types, of other APIs too, are here so that errors name them."""

    type: Annotated[
        str, described("Text; an answer also has `refusal` and thinking.", enum=[*_TEXTS, "refusal", *_THOUGHTS])
    ]
    text: Annotated[str | UnsetType | None, described("Of a text.", type=["string", "null"])] = UNSET
    refusal: Annotated[str | None, described("Of an answer's refusal.")] = None
    thinking: Annotated[Any, described("Of an answer's thinking: text, or parts of it.")] = None
    image_url: Annotated[Any, restricted("Only null.")] = None
    input_audio: Annotated[Any, restricted("Only null.")] = None
    file: Annotated[Any, restricted("Only null.")] = None
    video_url: Annotated[Any, restricted("Only null.")] = None
    audio_url: Annotated[Any, restricted("Only null.")] = None
    image: Annotated[Any, restricted("Only null.")] = None
    audio: Annotated[Any, restricted("Only null.")] = None
    video: Annotated[Any, restricted("Only null.")] = None
    source: Annotated[Any, restricted("Only null.")] = None
    file_id: Annotated[Any, restricted("Only null.")] = None
    file_data: Annotated[Any, restricted("Only null.")] = None
    file_url: Annotated[Any, restricted("Only null.")] = None


# Decoding allows that `text` is missing, so that the error for an unsupported type comes first.
Parts = list[str | ContentPart]
Content = str | Parts | None

CONTENT: dict[str, Any] = {
    "anyOf": [
        {"type": ["string", "null"]},
        {"type": "array", "items": {"anyOf": [{"type": "string"}, schema_of(ContentPart)]}},
    ]
}
"""The JSON Schema of a content."""

_other_contents = attrgetter(*restricted_names(ContentPart))
_NO_OTHER_CONTENTS = (None,) * len(restricted_names(ContentPart))


class Texts(msgspec.Struct, frozen=True, kw_only=True):
    """The text of a message's parts, and what was thought before."""

    text: str
    thoughts: str = ""


def content_of(given: Any, at: str) -> Content:
    """Return what stands at the place `at`, which may be any JSON, as a content.

    Raises:
        ApiError: 400: it is none.
    """
    if given is None or isinstance(given, str):
        return given
    try:
        parts: Content = msgspec.convert(given, Content, strict=True)
    except msgspec.ValidationError as error:
        raise validation_error(error, at=at) from None
    return parts


def read_content(
    content: Content, at: str, *, is_answer: bool = False, send: str = "text", param_end: str = ""
) -> Texts:
    """Return what a content says that stands at the place `at`; null says nothing.

    An answer's content also has refusals, and thinking, which means nothing in messages of others. An error about a
    type that is no text proposes the type `send`, and its `param` is the part's place and `param_end`.

    Raises:
        ApiError: 400: a part is no text.
    """
    if not isinstance(content, list):
        return Texts(text=content or "")
    texts: list[str] = []
    thoughts: list[str] = []
    # A body can have hundreds of thousands of parts, so each must cost little.
    for index, part in enumerate(content):
        if isinstance(part, str):
            texts.append(part)
        elif is_answer and part.type == "refusal":
            texts.append(part.refusal or part.text or "")
        elif part.type in _THOUGHTS:
            thoughts.append(_thought(part))
        elif part.type not in _TEXTS:
            place = f"{at}[{index}]"
            raise no_text(place, part.type, send=send, param=place + param_end)
        elif part.text is UNSET:
            raise missing(f"{at}[{index}].text")
        else:
            texts.append(part.text or "")
        if not isinstance(part, str) and _other_contents(part) != _NO_OTHER_CONTENTS:
            check_restricted(part, prefix=f"{at}[{index}].")
    return Texts(text="".join(texts), thoughts="".join(thoughts))


def read_result(content: Any) -> str:
    """Return what the result of a tool says, which is anything that JSON has; null says nothing.

    It is the text, or those of parts, or else the JSON of it. In the place of a picture, a sound or a file the model
    reads that it was left out: a refusal would lose the conversation, whose client sends the result again and again.
    """
    if content is None or isinstance(content, str):
        return content or ""
    try:
        parts = msgspec.convert(content, Parts)
    except msgspec.ValidationError:
        return msgspec.json.encode(content).decode()
    texts = [_result_text(part) for part in parts]
    is_data = None in texts or (bool(parts) and all(isinstance(part, str) for part in parts))  # whose bounds matter
    return msgspec.json.encode(content).decode() if is_data else "".join(text or "" for text in texts)


def _result_text(part: str | ContentPart) -> str | None:
    """Return the text of a part of a result; None of an object that is no part, or has more than its text."""
    if isinstance(part, str):
        return part
    is_empty = _other_contents(part) == _NO_OTHER_CONTENTS
    is_entry = is_empty and _MEDIA.get(part.type) == "file"  # of a listing of files, with none in it
    if part.type in _MEDIA and not is_entry:
        return omitted(_MEDIA[part.type])
    if part.type not in _TEXTS or part.text is UNSET or not is_empty:
        return None
    return part.text or ""


def _thought(part: ContentPart) -> str:
    """Return the text of a part of thinking, which Mistral's API has as a list of parts."""
    return thoughts_of(part.thinking) or part.text or ""


def thoughts_of(given: Any) -> str:
    """Return the thinking in a text, or in a list of parts: Mistral's, OpenRouter's details, LiteLLM's blocks."""
    if not isinstance(given, list):
        return given if isinstance(given, str) else ""
    found = [[part.get(name) for name in ("text", "summary", "thinking")] for part in given if isinstance(part, dict)]
    return "".join(next((text for text in texts if text and isinstance(text, str)), "") for texts in found)
