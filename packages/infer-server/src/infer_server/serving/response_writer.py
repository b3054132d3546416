"""Writes the pieces of a streamed body straight to the socket: what a chunk looks like needs no parser's state machine.

Everything else, the head and the end of a response above all, goes through uvicorn and h11.
"""

from collections.abc import Awaitable, Generator
from typing import Any

from litestar.types import Message, Send
from uvicorn.protocols.http.h11_impl import RequestResponseCycle

_NO_BODY = frozenset({204, 304})


class _Done(Awaitable[None]):
    """Awaiting it takes no turn of the event loop."""

    def __await__(self) -> Generator[Any, None, None]:
        yield from ()


_DONE = _Done()


class ResponseWriter:
    """The `send` of one request. It waits, as that of uvicorn does, while the client does not read."""

    __slots__ = ("_cycle", "_flow", "_is_chunked", "_send", "_transport")

    def __init__(self, cycle: RequestResponseCycle, send: Send) -> None:
        """Write what `cycle` answers; `send` is its own."""
        self._cycle = cycle
        self._flow = cycle.flow
        self._transport = cycle.transport
        self._send = send
        self._is_chunked = False

    def __call__(self, message: Message) -> Awaitable[None]:
        """Return what sends `message`."""
        if self._transport.is_closing():
            self._cycle.disconnected = True  # the connection learns it in its next turn; uvloop's writes would raise
        elif message["type"] == "http.response.start":
            self._is_chunked = self._will_be_chunked(message["status"], message.get("headers", ()))
        elif self._is_chunked and not self._flow.write_paused and not self._cycle.disconnected:
            body = message.get("body")
            if body and message.get("more_body"):
                self._transport.write(b"%x\r\n%b\r\n" % (len(body), body))  # type: ignore[str-format,arg-type]  # litestar types it as any object
                return _DONE
        return self._send(message)

    def _will_be_chunked(self, status: int, headers: Any) -> bool:
        """Return whether h11 frames the body by chunks: it does where neither side's head asks for anything else."""
        scope = self._cycle.scope
        return (
            scope["http_version"] == "1.1"
            and scope["method"] != "HEAD"
            and status not in _NO_BODY
            and all(name.lower() != b"content-length" for name, _ in headers)
        )
