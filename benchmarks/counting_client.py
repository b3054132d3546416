"""A raw client that only counts: bytes from a socket, tokens by their JSON key. As cheap as a client can be."""

import asyncio
import json
import time
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any
from urllib.parse import urlsplit

TOKEN_MARK = b'"token_id"'


@dataclass(slots=True)
class Received:
    """What one stream has sent.

    Attributes:
        num_tokens: events that carry a token.
        times_s: when bytes came.
        status: the HTTP status.
    """

    num_tokens: int = 0
    times_s: list[float] = field(default_factory=list)
    status: int = 0

    @property
    def gaps_s(self) -> list[float]:
        """The silences between the first bytes and the last."""
        return [later - earlier for earlier, later in pairwise(self.times_s)]


async def post(url: str, path: str, body: dict[str, Any]) -> Received:
    """Send one request on a connection of its own and count what comes until the server closes it."""
    address = urlsplit(url)
    reader, writer = await asyncio.open_connection(address.hostname, address.port, limit=1 << 20)
    received = Received()
    data = json.dumps(body).encode()
    head = (
        f"POST {path} HTTP/1.1\r\nHost: {address.netloc}\r\nContent-Type: application/json\r\n"
        f"Content-Length: {len(data)}\r\nConnection: close\r\n\r\n"
    )
    try:
        writer.write(head.encode() + data)
        await writer.drain()
        rest = b""
        while chunk := await reader.read(1 << 16):
            received.times_s.append(time.perf_counter())
            received.status = received.status or int(chunk.split(b" ", 2)[1])
            joined = rest + chunk
            received.num_tokens += joined.count(TOKEN_MARK)
            cut = joined.rfind(TOKEN_MARK)
            rest = joined[-len(TOKEN_MARK) + 1 :] if cut < 0 else joined[max(cut + 1, len(joined) - 9) :]
    finally:
        writer.close()
    return received


async def get_latency_s(url: str, path: str) -> float:
    """Return how long a GET on a connection of its own takes, connecting included."""
    address = urlsplit(url)
    began_s = time.perf_counter()
    reader, writer = await asyncio.open_connection(address.hostname, address.port)
    try:
        writer.write(f"GET {path} HTTP/1.1\r\nHost: {address.netloc}\r\nConnection: close\r\n\r\n".encode())
        reply = await reader.read()
        if b" 200 " not in reply.split(b"\r\n", 1)[0]:
            raise RuntimeError(f"{path} was answered with {reply[:200]!r}")
    finally:
        writer.close()
    return time.perf_counter() - began_s


async def read_streams(url: str, body: dict[str, Any], num_streams: int) -> list[Received]:
    """Read so many completions of `body`, which asks for a stream, to their ends, all at once.

    Raises:
        RuntimeError: one has not as many tokens as were asked for.
    """
    streams = await asyncio.gather(*(post(url, "/v1/completions", body) for _ in range(num_streams)))
    if any(stream.num_tokens != body["max_tokens"] for stream in streams):
        raise RuntimeError(f"{[stream.num_tokens for stream in streams]} tokens came of {body['max_tokens']}")
    return list(streams)


async def probe(url: str, latencies_s: list[float], *, after_s: float = 0.0) -> None:
    """Ask `/health` twenty times a second, from `after_s` seconds on, until cancelled."""
    await asyncio.sleep(after_s)
    while True:
        latencies_s.append(await get_latency_s(url, "/health"))
        await asyncio.sleep(0.05)
