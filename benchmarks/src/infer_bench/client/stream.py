"""Reads an event stream of the OpenAI API: completions, chats and errors, decoded no further than a benchmark needs."""

from collections.abc import AsyncIterator
from typing import Any

import msgspec

from infer_bench.client.http import Reply


class _PromptDetails(msgspec.Struct):
    cached_tokens: int | None = None


class Usage(msgspec.Struct):
    """Tokens as the server counted them."""

    prompt_tokens: int = 0
    completion_tokens: int | None = 0
    prompt_tokens_details: _PromptDetails | None = None


class _Delta(msgspec.Struct):
    content: str | None = None
    reasoning_content: str | None = None


class _Choice(msgspec.Struct):
    text: str | None = None
    delta: _Delta | None = None
    finish_reason: str | None = None


class Event(msgspec.Struct):
    """One event of a stream."""

    choices: list[_Choice] = []
    usage: Usage | None = None
    error: Any = None
    token_id: int | None = None

    @property
    def has_token(self) -> bool:
        """At least one token is in it.

        A completion's text may be empty: the server holds it back, or the token has none. Without text and with a
        finish reason an event may be the end alone.
        """
        if self.token_id is not None:
            return True
        for choice in self.choices:
            delta = choice.delta
            if choice.text or (choice.text is not None and choice.finish_reason is None):
                return True
            if delta is not None and (delta.content or delta.reasoning_content):
                return True
        return False

    @property
    def text(self) -> str:
        """What it adds to the answer."""
        return "".join(choice.text or (choice.delta and choice.delta.content) or "" for choice in self.choices)

    @property
    def finish_reason(self) -> str | None:
        """Why the answer ended, in the event that ends it."""
        return self.choices[0].finish_reason if self.choices else None


_decode = msgspec.json.Decoder(Event).decode


async def read_events(reply: Reply) -> AsyncIterator[Event | None]:
    """Yield the events of `reply` as they come; None for the mark `[DONE]`.

    Raises:
        msgspec.MsgspecError: an event is no such JSON.
        BrokenReplyError: the stream broke off.
    """
    async for line in reply.lines():
        if line.startswith(b"data:"):
            data = line[5:].strip()
            yield None if data == b"[DONE]" else _decode(data)
