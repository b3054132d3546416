"""CORS: which web pages may call from a browser. Knows origins; knows no route and no key.

It wraps the authentication, because browsers ask for permission without a key, and show pages no error, a 401
included, that does not name their origin. Cookies mean nothing here, so credentials are never allowed.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from litestar.enums import ScopeType
from litestar.types import ASGIApp, Message, Receive, Scope, Send

_METHODS = b"GET, HEAD, OPTIONS, POST"
_EXPOSED = b"retry-after, x-request-id"
_PERMISSION_S = 600


def with_cors(app: ASGIApp, *, origins: Sequence[str]) -> ASGIApp:
    """Return `app`, whose replies pages of `origins` may read (`*` is every origin); `app` itself if there are none."""
    if not origins:
        return app
    allowed = frozenset(origin.lower().encode("ascii") for origin in origins)
    everybody = b"*" in allowed

    def permission(origin: bytes | None) -> list[tuple[bytes, bytes]]:
        vary = [] if everybody else [(b"vary", b"origin")]
        if origin is None or not (everybody or origin.lower() in allowed):
            return vary
        return [*vary, (b"access-control-allow-origin", b"*" if everybody else origin)]

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


async def _answer_preflight(permission: list[tuple[bytes, bytes]], scope: Scope, send: Send) -> None:
    """Say what the origin may send. One that may not learns it by what is missing, as browsers expect."""
    headers = [
        *permission,
        (b"access-control-allow-methods", _METHODS),
        (b"access-control-max-age", b"%d" % _PERMISSION_S),
    ]
    wanted = _header(scope, b"access-control-request-headers")
    if wanted:
        headers.append((b"access-control-allow-headers", wanted))
    await send({"type": "http.response.start", "status": 204, "headers": headers})
    await send({"type": "http.response.body", "body": b"", "more_body": False})


def _header(scope: Mapping[str, Any], wanted: bytes) -> bytes | None:
    return next((value for name, value in scope["headers"] if name == wanted), None)
