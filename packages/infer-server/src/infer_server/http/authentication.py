"""API keys: who may call, and as whom. Knows keys and paths; knows no route's meaning.

It wraps the whole application, so that what has no route is guarded too.
"""

import hashlib
import secrets
from collections.abc import Mapping, Sequence
from typing import Any

from litestar.enums import ScopeType
from litestar.types import ASGIApp, Receive, Scope, Send

from infer_server.errors import ApiError
from infer_server.http.error_replies import send_error

# Probes and scrapers bring no key, and the playground's page has nothing in it but the place to enter one.
OPEN_PATHS = frozenset({"/", "/health", "/ready", "/metrics"})

_STATE_KEY = "infer_tenant"
_TENANT_CHARACTERS = 32


def authenticated(app: ASGIApp, *, keys: Sequence[str]) -> ASGIApp:
    """Return `app` for those who bring one of `keys` as `Authorization: Bearer KEY`; for everybody if there are none.

    `OPEN_PATHS` need no key. Others are answered with 401 before `app` sees them.
    """
    if not keys:
        return app
    digests = [_digest(key.encode("ascii")) for key in keys]

    async def guard(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == ScopeType.HTTP and scope["path"] not in OPEN_PATHS:
            credentials = [value for name, value in scope["headers"] if name == b"authorization"]
            digest = _digest(_bearer_key(credentials))
            # All are compared, each in constant time: how long it takes says nothing about any key.
            if not sum(secrets.compare_digest(digest, known) for known in digests):
                await send_error(_refusal(credentials), send)
                return
            scope.setdefault("state", {})[_STATE_KEY] = digest[:_TENANT_CHARACTERS]
        await app(scope, receive, send)

    return guard


def tenant(scope: Mapping[str, Any]) -> str | None:
    """Return the name of whoever sent the request of `scope`, made from the key's digest; None where no key is needed.

    Requests of one tenant may share what is cached of their prompts.
    """
    name: str | None = scope.get("state", {}).get(_STATE_KEY)
    return name


def _digest(key: bytes) -> str:
    return hashlib.sha256(key).hexdigest()


def _bearer_key(credentials: Sequence[bytes]) -> bytes:
    """Return the key of the one `Authorization` header, or one that nobody has: settings take no empty keys."""
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
