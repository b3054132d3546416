"""The writes of a response: one for a whole answer, one for each piece of a streamed body.

Pieces go straight to the socket: what a chunk looks like needs no parser's state machine. Everything else, heads and
ends, goes through uvicorn and h11.
"""

from collections.abc import Awaitable, Generator
from typing import Any, cast

from litestar.types import Message, Send
from uvicorn.protocols.http.h11_impl import RequestResponseCycle

_NO_BODY = frozenset({204, 304})


class _Done(Awaitable[None]):
    """Awaiting it takes no turn of the event loop."""

    def __await__(self) -> Generator[Any, None, None]:
        yield from ()


_DONE = _Done()


class ResponseWriter:
    """The `send` of one request, and the transport that uvicorn writes its answer to.

    It waits, as the `send` of uvicorn does, while the client does not read.
    """

    __slots__ = ("_cycle", "_flow", "_held", "_is_chunked", "_is_holding", "_on_response", "_send", "_transport")

    def __init__(self, cycle: RequestResponseCycle, send: Send) -> None:
        """Write what `cycle` answers; `send` is its own."""
        self._cycle = cycle
        self._flow = cycle.flow
        self._transport = cycle.transport
        self._send = send
        self._is_chunked = False
        self._is_holding = False
        self._held: list[bytes] = []
        self._on_response = cycle.on_response
        cycle.transport = cast("Any", self)
        cycle.on_response = self._complete

    def __call__(self, message: Message) -> Awaitable[None]:
        """Return what sends `message`."""
        if self._transport.is_closing():
            self._cycle.disconnected = True  # the connection learns it in its next turn; uvloop's writes would raise
        elif message["type"] == "http.response.start":
            has_length = any(name.lower() == b"content-length" for name, _ in message.get("headers", ()))
            self._is_chunked = not has_length and self._may_be_chunked(message["status"])
            self._is_holding = has_length  # then the body follows at once
        elif self._is_holding:
            return self._send_and_release(message)
        elif self._is_chunked and not self._flow.write_paused and not self._cycle.disconnected:
            body = cast("bytes", message.get("body", b""))
            if body and message.get("more_body"):
                self._transport.write(b"%x\r\n%b\r\n" % (len(body), body))
                return _DONE
        return self._send(message)

    def write(self, data: bytes) -> None:
        """Write `data`, or hold it until the rest of the answer is there."""
        if self._is_holding:
            self._held.append(data)
        else:
            self._transport.write(data)

    def is_closing(self) -> bool:
        """Return whether the connection closes."""
        return self._transport.is_closing()

    def close(self) -> None:
        """Close the connection once everything is written."""
        self._release()
        self._transport.close()

    async def _send_and_release(self, message: Message) -> None:
        await self._send(message)
        self._release()

    def _complete(self) -> None:
        """Let the connection go on, which may answer what has come meanwhile: first, this answer must be written."""
        self._release()
        self._on_response()

    def _release(self) -> None:
        """Write what was held; later writes go through."""
        held, self._held = b"".join(self._held), []
        self._is_holding = False
        if held and not self._transport.is_closing():
            self._transport.write(held)

    def _may_be_chunked(self, status: int) -> bool:
        """Return whether h11 frames a body without a length by chunks."""
        scope = self._cycle.scope
        return scope["http_version"] == "1.1" and scope["method"] != "HEAD" and status not in _NO_BODY
