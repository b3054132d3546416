"""Server-sent events: encoding, headers, pings, disconnects.

Only `event:`, `data:` and comment lines are written: widely used clients fail on `id:` and `retry:`.
"""

import asyncio
import logging
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any

import msgspec
from litestar import Response
from litestar.types import ASGIApp, Receive, Scope, Send

from infer_server.errors import ErrorReply, internal_error
from infer_server.http.disconnects import cancel_and_wait, wait_for_disconnect
from infer_server.http.request_ids import request_id

logger = logging.getLogger(__name__)

EventEncoder = Callable[[str, object], bytes]

_encode = msgspec.json.Encoder().encode

MEDIA_TYPE = "text/event-stream"
DONE = b"data: [DONE]\n\n"
PING = b": ping\n\n"
_HEADERS = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),
]


def accepts_event_stream(accept: str) -> bool:
    """Return whether an `Accept` header names `text/event-stream`; `*/*` does not."""
    return _weights(accept).get(MEDIA_TYPE, 0.0) > 0


def accepts_only_event_stream(accept: str) -> bool:
    """Return whether an `Accept` header names `text/event-stream` and takes no JSON: it asks for a stream."""
    weights = _weights(accept)
    json = next((weights[each] for each in ("application/json", "application/*", "*/*") if each in weights), 0.0)
    return accepts_event_stream(accept) and json == 0


def _weights(accept: str) -> dict[str, float]:
    return dict(map(_media_range, accept.split(",")))


def _media_range(text: str) -> tuple[str, float]:
    """Return a media range of an `Accept` header, and its weight (RFC 9110, 12.4.2)."""
    media_range, *parameters = (part.strip().lower() for part in text.split(";"))
    weight = next((each.removeprefix("q=") for each in parameters if each.startswith("q=")), "1")
    try:
        return media_range, float(weight)
    except ValueError:
        return media_range, 1.0


def named_event(name: str, data: object) -> bytes:
    """Return one event with an `event:` line."""
    return f"event: {name}\n".encode() + plain_event(name, data)


def plain_event(_: str, data: object) -> bytes:
    """Return one event without an `event:` line. JSON has no raw line breaks, so no text can end the event."""
    return b"data: %b\n\n" % _encode(data)


@dataclass(frozen=True, slots=True, kw_only=True)
class EventStream:
    """The events of a response.

    Attributes:
        events: the bytes of one write each.
        error_event: makes the last bytes of the stream if `events` raises.
        ping: is sent while there are no events.
    """

    events: AsyncGenerator[bytes, None]
    error_event: Callable[[ErrorReply], bytes]
    ping: bytes = PING


class EventStreamResponse(Response[Any]):
    """Sends a stream's events, and pings in between; calls `release` at the end, also after an error."""

    def __init__(self, stream: EventStream, *, release: Callable[[], None], ping_interval_s: float) -> None:
        """Send `stream`, with a ping after each `ping_interval_s` seconds without events."""
        super().__init__(content=b"", media_type=MEDIA_TYPE)
        self._stream = stream
        self._release = release
        self._ping_interval_s = ping_interval_s
        self._last_write_s = 0.0

    def to_asgi_response(self, *_: Any, **__: Any) -> ASGIApp:  # type: ignore[override]  # the framework passes more than ASGI needs
        """Return the ASGI application that writes the stream."""
        return self._run

    async def _run(self, scope: Scope, receive: Receive, send: Send) -> None:
        tasks: list[asyncio.Task[None]] = []
        try:
            await send({"type": "http.response.start", "status": 200, "headers": list(_HEADERS)})
            writer = asyncio.create_task(self._write(scope, send))
            tasks += [writer, asyncio.create_task(self._ping(send)), asyncio.create_task(wait_for_disconnect(receive))]
            await asyncio.wait({writer, tasks[2]}, return_when=asyncio.FIRST_COMPLETED)
            if writer.done():
                await cancel_and_wait(*tasks[1:])
                await send({"type": "http.response.body", "body": b"", "more_body": False})
        finally:
            self._release()
            await cancel_and_wait(*tasks)

    async def _write(self, scope: Scope, send: Send) -> None:
        try:
            async with aclosing(self._stream.events) as events:
                async for event in events:
                    await self._send(send, event)
        except Exception:
            logger.exception("stream of request %s failed", request_id(scope))
            await self._send(send, self._stream.error_event(internal_error().reply))

    async def _ping(self, send: Send) -> None:
        clock = asyncio.get_running_loop().time
        self._last_write_s = clock()
        while True:
            idle_s = clock() - self._last_write_s
            if idle_s >= self._ping_interval_s:
                await self._send(send, self._stream.ping)
                idle_s = 0.0
            await asyncio.sleep(self._ping_interval_s - idle_s)

    async def _send(self, send: Send, event: bytes) -> None:
        await send({"type": "http.response.body", "body": event, "more_body": True})
        self._last_write_s = asyncio.get_running_loop().time()
