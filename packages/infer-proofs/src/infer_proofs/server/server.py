"""A server in the test's own event loop, and raw connections to it."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from infer_engine.protocol import Engine
from infer_server.app import create_app
from infer_server.connections.listener import bind_listeners, url_of
from infer_server.connections.server import HttpServer
from infer_server.settings import ServerSettings


@asynccontextmanager
async def running_server(engine: Engine, settings: ServerSettings | None = None) -> AsyncIterator[str]:
    """Serve `engine` on a free port of the loopback address, in this event loop; yield its URL."""
    listening = asyncio.Event()
    [listener] = bind_listeners("127.0.0.1", 0)
    settings = settings or ServerSettings()
    server = HttpServer(create_app(engine, settings=settings), settings=settings, on_listening=listening.set)
    task = asyncio.create_task(server.serve(sockets=[listener]))
    try:
        await listening.wait()
        yield url_of(listener, scheme="https" if settings.ssl_certfile else "http")
    finally:
        server.should_exit = True
        await task


async def open_socket(url: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """Open a TCP connection to the server at `url`, for malformed requests."""
    host, port = url.removeprefix("http://").split(":")
    return await asyncio.open_connection(host, int(port))


async def send_raw(url: str, request: bytes) -> bytes:
    """Send the bytes `request` over a connection of its own; return what comes until the server closes it."""
    reader, writer = await open_socket(url)
    try:
        writer.write(request)
        return await reader.read()
    finally:
        writer.close()
