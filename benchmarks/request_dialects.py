"""How a planned request is said to a server, and how its stream is read. Knows the two APIs; knows no sockets.

Prompts are token ids where the server takes them, so that they have exactly the planned length. Others get text of
common words, about one token each: what they counted is in the reply's usage.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import msgspec

from workloads import PlannedRequest

_COMMON = (
    "the of and to in is that it was for on are as with his they at be this from have or by one had not but what all "
    "were when we there can an your which their said if do will each about how up out them then she many some so these "
    "would other into has more her two like him see time could no make than first been its who now people my made over "
    "did down only way find use may water long little very after words called just where most know"
)
WORDS = tuple(_COMMON.split())


class _Detail(msgspec.Struct):
    cached_tokens: int | None = None


class Usage(msgspec.Struct):
    """Tokens as the server counted them."""

    prompt_tokens: int = 0
    completion_tokens: int | None = 0
    prompt_tokens_details: _Detail | None = None


class _Delta(msgspec.Struct):
    content: str | None = None
    reasoning_content: str | None = None


class _Choice(msgspec.Struct):
    text: str | None = None
    delta: _Delta | None = None
    finish_reason: str | None = None


class Event(msgspec.Struct):
    """One event of a stream: what completions, chats and errors have in common."""

    choices: list[_Choice] = []
    usage: Usage | None = None
    error: Any = None
    token_id: int | None = None

    @property
    def has_token(self) -> bool:
        """At least one token is in it: it brings text, or names a token whose text is held back."""
        if self.token_id is not None:
            return True
        delta = self.choices[0].delta if self.choices else None
        return any(choice.text for choice in self.choices) or bool(delta and (delta.content or delta.reasoning_content))

    @property
    def finish_reason(self) -> str | None:
        """Why the answer ended, in the event that ends it."""
        return self.choices[0].finish_reason if self.choices else None


decode_event = msgspec.json.Decoder(Event).decode


@dataclass(frozen=True, slots=True, kw_only=True)
class Dialect:
    """How requests are put.

    Attributes:
        name: how the report calls it.
        path: where requests go.
        prompt_fields: the prompt as fields of the body.
        extras: further fields: `EXTRAS` make every answer as long as planned where the server knows them, `PLAIN` are
            those that all servers know.
    """

    name: str
    path: str
    prompt_fields: Callable[[list[int]], dict[str, Any]]
    extras: dict[str, Any]

    def body(self, request: PlannedRequest, *, model: str | None) -> bytes:
        """Return the JSON body of `request`."""
        named = {} if model is None else {"model": model}
        return msgspec.json.encode(
            {
                **named,
                **self.prompt_fields(request.prompt),
                "max_tokens": request.max_tokens,
                "stream": True,
                **self.extras,
            }
        )


PLAIN: dict[str, Any] = {"stream_options": {"include_usage": True}}
EXTRAS: dict[str, Any] = {"temperature": 0, "ignore_eos": True, **PLAIN}


def as_text(prompt: list[int]) -> str:
    """Return as many words as `prompt` has tokens: the same words for the same ids, so that shared prefixes stay."""
    return " ".join(WORDS[token_id % len(WORDS)] for token_id in prompt)


def _ids(prompt: list[int]) -> dict[str, Any]:
    return {"prompt": prompt}


def _text(prompt: list[int]) -> dict[str, Any]:
    return {"prompt": as_text(prompt)}


def _messages(prompt: list[int]) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": as_text(prompt)}]}


TOKEN_IDS = Dialect(name="completions, token ids", path="/v1/completions", prompt_fields=_ids, extras=EXTRAS)
TEXT = Dialect(name="completions, text", path="/v1/completions", prompt_fields=_text, extras=EXTRAS)
CHAT = Dialect(name="chat", path="/v1/chat/completions", prompt_fields=_messages, extras=EXTRAS)
