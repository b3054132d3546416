"""Hostile clients: odd bodies over sound HTTP, and sockets that are slow, cut or half closed."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Mapping, Sequence
from http import HTTPStatus
from random import Random

import httpx

from infer_bench.client.http import http_client
from infer_bench.soak.tally import Outcome, UnexpectedReplyError
from infer_proofs.server import open_socket
from infer_proofs.server.hostile_requests import (
    NOT_JSON,
    ODD,
    SOUND,
    UNFINISHED,
    places_of_cuts,
    requests_to_cut,
    with_field,
)

REFUSALS = (400, 404, 408, 413, 422)
"""With 408 where this process had no time to send 20 MB within the server's patience."""
NOT_JSON_SHARE = 0.1
"""Share of the bodies; a sixth of these has 10 or 20 MB."""
END_S = 60.0
"""Within which the server must be rid of a socket that sends nothing whole."""
CUT = requests_to_cut(4)


class HostileBodies:
    """Draws bodies that are no JSON, or have an odd field."""

    def __init__(self, fields: Mapping[str, Sequence[str]], *, seed: int) -> None:
        """Draw among `fields`, the names of the body's fields by path."""
        self._fields = fields
        self._draw = Random(seed)  # noqa: S311 - no secret

    def draw(self) -> tuple[str, str, bytes]:
        """Return a path, what is wrong with the body, and the body."""
        path = self._draw.choice(list(SOUND))
        if self._draw.random() < NOT_JSON_SHARE:
            name = self._draw.choice(list(NOT_JSON))
            return path, name, NOT_JSON[name]
        name = self._draw.choice(self._fields[path])
        return path, name, with_field(path, name, self._draw.choice(ODD)).encode()


async def read_fields(url: str) -> dict[str, Sequence[str]]:
    """Return the names of the body's fields by path, as the server's schema has them, and some that it has not."""
    async with http_client(url) as client:
        paths = (await client.get("/schema/openapi.json")).json()["paths"]
    schemas = {path: paths[path]["post"]["requestBody"]["content"]["application/json"]["schema"] for path in SOUND}
    return {path: [*schema["properties"], "\\ud800", "bogus", ""] for path, schema in schemas.items()}


async def send_body(url: str, path: str, what: str, body: bytes) -> Outcome:
    """Send a whole request with `body`; return whether it was answered or refused.

    Raises:
        UnexpectedReplyError: it was answered with another status, as if it were the server's fault.
    """
    try:
        async with http_client(url) as client:
            reply = await client.post(path, content=body)
    except httpx.TransportError:
        if "limit" in what:  # refused before it was read, and what came behind the answer broke the connection
            return "refused"
        raise
    if reply.status_code == HTTPStatus.OK:
        return "answered"
    if reply.status_code in REFUSALS:
        return "refused"
    raise UnexpectedReplyError(f"{reply.status_code} for {path} with {what}: {body[:200]!r}")


async def drip(url: str, number: int) -> Outcome:
    """Send a request a byte at a time until the server has enough of it."""
    async with _connected(url) as (reader, writer):
        writer.write(UNFINISHED[number % len(UNFINISHED)])

        async def send_bytes() -> None:
            with contextlib.suppress(ConnectionError):  # the server is rid of it
                while True:
                    await asyncio.sleep(0.25)
                    writer.write(b"a")
                    await writer.drain()

        dripping = asyncio.create_task(send_bytes())
        try:
            return _judge(await _everything(reader))
        finally:
            dripping.cancel()
            await asyncio.wait({dripping})


async def cut(url: str, draw: Random) -> Outcome:
    """Close a connection in the middle of a request, or behind it."""
    async with _connected(url) as (_, writer):
        writer.write(_draw_piece(draw))
        await writer.drain()
        await asyncio.sleep(draw.choice((0.0, 0.05)))
    return "disconnected"


async def close_half(url: str, draw: Random) -> Outcome:
    """Say in the middle of a request, or behind it, that nothing follows, and read what comes."""
    async with _connected(url) as (reader, writer):
        writer.write(_draw_piece(draw))
        writer.write_eof()
        return _judge(await _everything(reader))


def _draw_piece(draw: Random) -> bytes:
    request = draw.choice(CUT)
    return request[: draw.choice(places_of_cuts(request))]


def _judge(reply: bytes) -> Outcome:
    status = reply[9:12].decode(errors="replace")
    if status == "200":
        return "answered"
    if status in ("", "400", "408", "413", "422"):
        return "refused"
    raise UnexpectedReplyError(f"a raw socket got {reply[:200]!r}")


async def _everything(reader: asyncio.StreamReader) -> bytes:
    received = b""
    with contextlib.suppress(ConnectionResetError):
        async with asyncio.timeout(END_S):
            while piece := await reader.read(65536):
                received += piece
    return received


@contextlib.asynccontextmanager
async def _connected(url: str) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    reader, writer = await open_socket(url)
    try:
        yield reader, writer
    finally:
        writer.close()
