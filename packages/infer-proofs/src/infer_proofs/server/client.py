"""A client of the application without a socket. Needs httpx, which the server does not."""

import httpx

from infer_engine.protocol import Engine
from infer_server.app import create_app
from infer_server.settings import ServerSettings


def client_of(engine: Engine, settings: ServerSettings | None = None) -> httpx.AsyncClient:
    """Return an HTTP client of an application around `engine`, over ASGI in this process."""
    app = create_app(engine, settings=settings or ServerSettings())
    return httpx.AsyncClient(transport=httpx.ASGITransport(app=app), base_url="http://server")  # type: ignore[arg-type]  # litestar's own ASGI types
