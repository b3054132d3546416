"""CORS: middleware that allows web pages of configured origins to call this server from a browser.

It wraps the authentication: preflight requests have no key, and a browser hides an error (a 401 too) from a page unless
the reply allows its origin. The server uses no cookies, so credentials are never allowed.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Any

from litestar.enums import ScopeType
from litestar.types import ASGIApp, Message, Receive, Scope, Send

_METHODS = b"GET, HEAD, OPTIONS, POST"
_EXPOSED = b"retry-after, x-request-id, request-id"
_PREFLIGHT_MAX_AGE_S = 600


def with_cors(app: ASGIApp, *, origins: Sequence[str]) -> ASGIApp:
    """Return `app` with CORS headers for pages of `origins`, in which a `*` is any text; `app` itself without any."""
    if not origins:
        return app
    allows_all = "*" in origins
    allowed = re.compile("|".join(map(_pattern, origins)).encode("ascii"), re.IGNORECASE)

    def permission(origin: bytes | None) -> list[tuple[bytes, bytes]]:
        vary = [] if allows_all else [(b"vary", b"origin")]
        if origin is None or not (allows_all or allowed.fullmatch(origin)):
            return vary
        return [*vary, (b"access-control-allow-origin", b"*" if allows_all else origin)]

    async def answer(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != ScopeType.HTTP:
            await app(scope, receive, send)
            return
        origin = _header(scope, b"origin")
        if scope["method"] == "OPTIONS" and origin is not None and _header(scope, b"access-control-request-method"):
            await _answer_preflight(permission(origin), scope, send)
            return

        async def send_with_permission(message: Message) -> None:
            if message["type"] == "http.response.start":
                exposed = (b"access-control-expose-headers", _EXPOSED)
                message["headers"] = [*message.get("headers", []), *permission(origin), exposed]
            await send(message)

        await app(scope, receive, send_with_permission)

    return answer


def _pattern(origin: str) -> str:
    """Return the regular expression of an origin; `https://*.example.com` has subdomains, and not the domain itself."""
    return "[^/]+".join(map(re.escape, origin.split("*")))


async def _answer_preflight(permission: list[tuple[bytes, bytes]], scope: Scope, send: Send) -> None:
    """Answer a preflight request; for an origin that is not allowed, `permission` has no header that allows it."""
    headers = [
        *permission,
        (b"access-control-allow-methods", _METHODS),
        (b"access-control-max-age", b"%d" % _PREFLIGHT_MAX_AGE_S),
    ]
    wanted = _header(scope, b"access-control-request-headers")
    if wanted:
        headers.append((b"access-control-allow-headers", wanted))
    await send({"type": "http.response.start", "status": 204, "headers": headers})
    await send({"type": "http.response.body", "body": b"", "more_body": False})


def _header(scope: Mapping[str, Any], wanted: bytes) -> bytes | None:
    return next((value for name, value in scope["headers"] if name == wanted), None)
