"""A client of HTTP/1.1 as small as streams of tokens need: bytes in, bytes out, one request per connection.

A read of a general client costs more than a token does. Here all chunks that have come are taken at once, a few
microseconds above asyncio's own read, so that the client of a benchmark does not measure itself.
"""

import asyncio
import ssl
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from urllib.parse import urlsplit

_LIMIT = 1 << 20
"""Bytes of the longest line, and of one read."""


class BrokenReplyError(Exception):
    """The server closed the connection in the middle of its reply, or sent what is not HTTP/1.1."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """A reply whose head has come; `headers` are by lower-case name."""

    status: int
    headers: dict[str, str]
    _reader: asyncio.StreamReader

    async def pieces(self) -> AsyncIterator[bytes]:
        """Yield the body as it comes, as much as there is at a time."""
        try:
            if "chunked" in self.headers.get("transfer-encoding", "").lower():
                async for piece in self._chunks():
                    yield piece
            elif "content-length" in self.headers:
                yield await self._reader.readexactly(int(self.headers["content-length"]))
            else:
                while piece := await self._reader.read(_LIMIT):
                    yield piece
        except (asyncio.IncompleteReadError, ValueError) as error:
            raise BrokenReplyError(f"the reply broke off: {error}") from error

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

    async def _chunks(self) -> AsyncIterator[bytes]:
        data = b""
        while read := await self._reader.read(_LIMIT):
            data += read
            taken: list[bytes] = []
            at = 0
            while (line_end := data.find(b"\r\n", at)) >= 0:
                size = int(data[at:line_end].partition(b";")[0], 16)
                end = line_end + 2 + size + 2
                if len(data) < end:
                    break
                taken.append(data[line_end + 2 : end - 2])
                at = end
                if not size:
                    yield b"".join(taken)
                    return
            data = data[at:]
            if taken:
                yield b"".join(taken)
        raise asyncio.IncompleteReadError(data, None)


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
        fields = {"Host": address.netloc, "Connection": "close", **(headers or {})}
        if method == "POST":
            fields |= {"Content-Type": "application/json", "Content-Length": str(len(body))}
        head = "".join(f"{name}: {value}\r\n" for name, value in fields.items())
        writer.write(f"{method} {address.path.rstrip('/')}{path} HTTP/1.1\r\n{head}\r\n".encode() + body)
        await writer.drain()
        yield await _read_head(reader)
    finally:
        writer.close()


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


async def _read_head(reader: asyncio.StreamReader) -> Reply:
    try:
        first, *lines = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
        status = int(first.split(" ", 2)[1])
    except (asyncio.IncompleteReadError, asyncio.LimitOverrunError, IndexError, ValueError) as error:
        raise BrokenReplyError(f"no HTTP reply came: {error}") from error
    fields = (line.partition(":") for line in lines if line)
    return Reply(
        status=status, headers={name.strip().lower(): value.strip() for name, _, value in fields}, _reader=reader
    )
