"""API keys: middleware that checks them, and the tenant that a request's key stands for.

It wraps the whole application, so that paths without a route need a key too.
"""

import hashlib
import secrets
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from litestar.enums import ScopeType
from litestar.types import ASGIApp, Receive, Scope, Send

from infer_server.errors import ApiError, ErrorShape, openai_shape
from infer_server.http.error_responses import send_error
from infer_server.probe_paths import PROBE_PATHS

# Probes and scrapers send no key, and the playground's page only has the field to enter one.
OPEN_PATHS = PROBE_PATHS | {"/"}

_STATE_KEY = "infer_tenant"
_TENANT_CHARACTERS = 32


def with_authentication(app: ASGIApp, *, keys: Sequence[str], shape: ErrorShape = openai_shape) -> ASGIApp:
    """Return `app` behind a check for one of `keys`; `app` itself if `keys` is empty.

    A key is in `Authorization: Bearer KEY` or, as Anthropic's clients send it, in `x-api-key: KEY`. Clients that find a
    key of another service in their environment send both: one of them is enough.

    `OPEN_PATHS` need no key. Requests without a valid key are answered with 401, in `shape`, and do not reach `app`.
    """
    if not keys:
        return app
    digests = [_digest(key.encode("ascii")) for key in keys]

    async def check_key(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == ScopeType.HTTP and scope["path"] not in OPEN_PATHS:
            credentials = [header for header in scope["headers"] if header[0] in (b"authorization", b"x-api-key")]
            valid = [sent for sent in map(_digest, _keys_of(credentials)) if _is_known(sent, digests)]
            if not valid:
                await send_error(_refusal(credentials), scope, send, shape=shape)
                return
            scope.setdefault("state", {})[_STATE_KEY] = valid[0][:_TENANT_CHARACTERS]
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


def _is_known(digest: str, known: Sequence[str]) -> bool:
    """Compare with all, each in constant time: the time taken reveals nothing about a key."""
    return sum(secrets.compare_digest(digest, each) for each in known) > 0


def _keys_of(credentials: Sequence[tuple[bytes, bytes]]) -> list[bytes]:
    """Return the keys of both headers, that of `Authorization` first; none of a header that was sent twice."""
    counts = Counter(name for name, _ in credentials)
    return [
        value.strip() if name == b"x-api-key" else _bearer_key(value)
        for name, value in sorted(credentials)
        if counts[name] == 1
    ]


def _bearer_key(value: bytes) -> bytes:
    scheme, _, key = value.partition(b" ")
    return key.strip() if scheme.lower() == b"bearer" else b""


def _refusal(credentials: Sequence[tuple[bytes, bytes]]) -> ApiError:
    how = "`Authorization: Bearer KEY`, or as `x-api-key: KEY`"
    if credentials:
        message = f"This API key is not one of the server's; send a valid one as {how}."
    else:
        message = f"The server needs an API key; send it as {how}."
    error = ApiError(401, message, code="invalid_api_key")
    error.headers["WWW-Authenticate"] = "Bearer"
    return error
