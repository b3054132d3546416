"""API keys: middleware that checks them, and the tenant that a request's key stands for.

It wraps the whole application, so that paths without a route need a key too.
"""

import hashlib
import secrets
from collections.abc import Mapping, Sequence
from typing import Any

from litestar.enums import ScopeType
from litestar.types import ASGIApp, Receive, Scope, Send

from infer_server.errors import ApiError
from infer_server.http.error_responses import send_error

# Probes and scrapers send no key, and the playground's page only has the field to enter one.
OPEN_PATHS = frozenset({"/", "/health", "/ready", "/metrics"})

_STATE_KEY = "infer_tenant"
_TENANT_CHARACTERS = 32


def with_authentication(app: ASGIApp, *, keys: Sequence[str]) -> ASGIApp:
    """Return `app` behind a check for one of `keys` in `Authorization: Bearer KEY`; `app` itself if `keys` is empty.

    `OPEN_PATHS` need no key. Requests without a valid key are answered with 401 and do not reach `app`.
    """
    if not keys:
        return app
    digests = [_digest(key.encode("ascii")) for key in keys]

    async def check_key(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == ScopeType.HTTP and scope["path"] not in OPEN_PATHS:
            credentials = [value for name, value in scope["headers"] if name == b"authorization"]
            digest = _digest(_bearer_key(credentials))
            # Compare with all keys, each in constant time: the time taken reveals nothing about a key.
            if not sum(secrets.compare_digest(digest, known) for known in digests):
                await send_error(_refusal(credentials), send)
                return
            scope.setdefault("state", {})[_STATE_KEY] = digest[:_TENANT_CHARACTERS]
        await app(scope, receive, send)

    return check_key


def tenant(scope: Mapping[str, Any]) -> str | None:
    """Return the tenant of the request of `scope`, derived from its API key; None where no key is needed.

    Requests of one tenant may share cached prefixes.
    """
    name: str | None = scope.get("state", {}).get(_STATE_KEY)
    return name


def _digest(key: bytes) -> str:
    return hashlib.sha256(key).hexdigest()


def _bearer_key(credentials: Sequence[bytes]) -> bytes:
    """Return the key of the only `Authorization` header, or an empty one, which is never valid."""
    if len(credentials) != 1:
        return b""
    scheme, _, key = credentials[0].partition(b" ")
    return key.strip() if scheme.lower() == b"bearer" else b""


def _refusal(credentials: Sequence[bytes]) -> ApiError:
    if credentials:
        message = "This API key is not one of the server's; send a valid one as `Authorization: Bearer KEY`."
    else:
        message = "The server needs an API key; send it as `Authorization: Bearer KEY`."
    error = ApiError(401, message, code="invalid_api_key")
    error.headers["WWW-Authenticate"] = "Bearer"
    return error
