"""For tests: a client of the application itself, without a socket. Needs httpx, which the server does not."""

import httpx

from infer_engine.protocol import Engine
from infer_server.app import create_app
from infer_server.settings import ServerSettings


def client_of(engine: Engine, settings: ServerSettings | None = None) -> httpx.AsyncClient:
    """Return a client of an application around `engine`; it sees what a socket's client would, but for the socket."""
    app = create_app(engine, settings=settings or ServerSettings())
    return httpx.AsyncClient(transport=httpx.ASGITransport(app=app), base_url="http://server")  # type: ignore[arg-type]  # litestar's own ASGI types
