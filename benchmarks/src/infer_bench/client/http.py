"""The HTTP client of all benchmarks: `httpx`, without limits of connections and time."""

import ssl
from collections.abc import AsyncIterator, Mapping
from functools import cache

import httpx

_HEADERS = {"Connection": "close", "Content-Type": "application/json", "Accept-Encoding": "identity"}
"""Not compressed, as `lines_of` takes bytes as they come."""


def http_client(url: str, *, headers: Mapping[str, str] | None = None) -> httpx.AsyncClient:
    """Return a client of the server at `url` that opens a connection for each request and closes it afterwards."""
    return httpx.AsyncClient(
        base_url=url,
        headers={**_HEADERS, **(headers or {})},
        verify=_certificates(),
        trust_env=False,
        timeout=None,  # noqa: S113 - the callers' limits are of whole requests
        limits=httpx.Limits(max_connections=None, max_keepalive_connections=0),
    )


async def lines_of(reply: httpx.Response) -> AsyncIterator[bytes]:
    """Yield a body's lines as they come, without their ends; `aiter_lines` would decode and divide at U+2028, too."""
    rest = b""
    async for piece in reply.aiter_raw():
        *whole, rest = (rest + piece).split(b"\n")
        for line in whole:
            yield line.rstrip(b"\r")
    if rest:
        yield rest


@cache
def _certificates() -> ssl.SSLContext:
    """Return the trusted certificates, which take milliseconds to read."""
    return httpx.create_ssl_context()
