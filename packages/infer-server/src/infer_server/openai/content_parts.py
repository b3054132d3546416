"""The content of a message in OpenAI's APIs: text, or a list of parts. URLs are never fetched."""

from operator import attrgetter
from typing import Annotated, Any

import msgspec
from msgspec import UNSET, UnsetType

from infer_server.api.fields import check_restricted, described, restricted, restricted_names
from infer_server.api.validation import no_text
from infer_server.errors import missing

_TEXTS = ("text", "input_text", "output_text")
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
Content = str | list[str | ContentPart] | None

_other_contents = attrgetter(*restricted_names(ContentPart))
_NO_OTHER_CONTENTS = (None,) * len(restricted_names(ContentPart))


class Texts(msgspec.Struct, frozen=True, kw_only=True):
    """What the parts of a message say: its text, and what was thought before."""

    text: str
    thoughts: str = ""


def read_content(
    content: Content, at: str, *, is_answer: bool = False, send: str = "text", param_end: str = ""
) -> Texts:
    """Return what a content says that stands at the place `at`; null says nothing.

    An answer's content also has thinking and refusals. An error about a type that is no text proposes the type `send`,
    and its `param` is the part's place and `param_end`.

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
        elif is_answer and part.type in _THOUGHTS:
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


def _thought(part: ContentPart) -> str:
    """Return the text of a part of thinking, which Mistral's API has as a list of parts."""
    match part.thinking:
        case str(text):
            return text
        case list(parts):
            texts = [each.get("text") for each in parts if isinstance(each, dict)]
            return "".join(text for text in texts if isinstance(text, str))
        case _:
            return part.text or ""
