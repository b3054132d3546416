"""A client of HTTP/1.1 as small as streams of tokens need: bytes in, bytes out, one request per connection.

A read of a general client costs more than a token does. Here all chunks that have come are taken at once, so that the
client of a benchmark does not measure itself; h11 parses them.
"""

import asyncio
import ssl
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from urllib.parse import urlsplit

import h11

_LIMIT = 1 << 20
"""Bytes of one read, and of the longest head."""


class BrokenReplyError(Exception):
    """The server closed the connection in the middle of its reply, or sent what is not HTTP/1.1."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """A reply whose head has come."""

    status: int
    _connection: h11.Connection
    _reader: asyncio.StreamReader

    async def pieces(self) -> AsyncIterator[bytes]:
        """Yield the body as it comes, as much as there is at a time."""
        taken: list[bytes] = []
        while True:
            try:
                event = self._connection.next_event()
            except h11.RemoteProtocolError as error:
                raise BrokenReplyError(f"the reply broke off: {error}") from error
            if isinstance(event, h11.Data):
                taken.append(event.data)
                continue
            if taken:
                yield b"".join(taken)
                taken = []
            if event is not h11.NEED_DATA:
                return
            self._connection.receive_data(await self._reader.read(_LIMIT))

    async def read(self) -> bytes:
        """Return the whole body."""
        return b"".join([piece async for piece in self.pieces()])

    async def lines(self) -> AsyncIterator[bytes]:
        """Yield the body's lines as they come, without their ends."""
        rest = b""
        async for piece in self.pieces():
            *whole, rest = (rest + piece).split(b"\n")
            for line in whole:
                yield line.rstrip(b"\r")
        if rest:
            yield rest


@asynccontextmanager
async def exchange(
    url: str, path: str, *, method: str = "GET", body: bytes = b"", headers: dict[str, str] | None = None
) -> AsyncIterator[Reply]:
    """Send one request and yield its reply once the head is there; the connection is closed on leaving.

    Raises:
        OSError: there is no connection.
        BrokenReplyError: what came is no reply.
    """
    address = urlsplit(url)
    secure = ssl.create_default_context() if address.scheme == "https" else None
    port = address.port or (443 if secure else 80)
    reader, writer = await asyncio.open_connection(address.hostname, port, ssl=secure, limit=_LIMIT)
    try:
        connection = h11.Connection(h11.CLIENT, max_incomplete_event_size=_LIMIT)
        fields = {"Host": address.netloc, "Connection": "close", **(headers or {})}
        if method == "POST":
            fields |= {"Content-Type": "application/json", "Content-Length": str(len(body))}
        target = f"{address.path.rstrip('/')}{path}"
        events = (h11.Request(method=method, target=target, headers=list(fields.items())), h11.Data(data=body))
        for event in (*events, h11.EndOfMessage()):
            writer.write(connection.send(event) or b"")
        await writer.drain()
        yield Reply(status=await _read_status(connection, reader), _connection=connection, _reader=reader)
    finally:
        writer.close()


async def _read_status(connection: h11.Connection, reader: asyncio.StreamReader) -> int:
    while True:
        try:
            event = connection.next_event()
            if event is h11.NEED_DATA:
                connection.receive_data(await reader.read(_LIMIT))
        except h11.RemoteProtocolError as error:
            raise BrokenReplyError(f"no HTTP reply came: {error}") from error
        if isinstance(event, h11.Response):
            return event.status_code


async def fetch(url: str, path: str, *, headers: dict[str, str] | None = None) -> tuple[int, bytes]:
    """Return the status and the body of a GET."""
    async with exchange(url, path, headers=headers) as reply:
        return reply.status, await reply.read()


async def get_latency_s(url: str, path: str) -> float:
    """Return how long a GET on a connection of its own takes, connecting included.

    Raises:
        RuntimeError: the answer has another status than 200.
    """
    began_s = time.perf_counter()
    status, body = await fetch(url, path)
    if status != 200:
        raise RuntimeError(f"{path} was answered with {status}: {body[:200]!r}")
    return time.perf_counter() - began_s
