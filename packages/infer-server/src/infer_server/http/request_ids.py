"""`X-Request-Id`: on every reply the client's own, if it sent a sane one. A word for logs, never a key."""

import re
import uuid
from collections.abc import Mapping
from typing import Any

from litestar.types import ASGIApp, Message, Receive, Scope, Send

_SANE = re.compile(rb"[\x21-\x7e]{1,128}")
_STATE_KEY = "infer_request_id"


def request_id(scope: Scope) -> str:
    """Return the id of the request of `scope`: the client's, or one made up on the first call."""
    state: dict[str, Any] = scope.setdefault("state", {})
    if _STATE_KEY not in state:
        state[_STATE_KEY] = _sent_id(scope) or made_up_id()
    found: str = state[_STATE_KEY]
    return found


def made_up_id() -> str:
    """Return an id that no request has."""
    return f"req-{uuid.uuid4().hex}"


def with_request_ids(app: ASGIApp) -> ASGIApp:
    """Return `app`, whose every reply has the header."""

    async def answer(scope: Scope, receive: Receive, send: Send) -> None:
        async def send_with_id(message: Message) -> None:
            if message["type"] == "http.response.start":
                header = (b"x-request-id", request_id(scope).encode("ascii"))
                message["headers"] = [*message.get("headers", []), header]
            await send(message)

        await app(scope, receive, send_with_id)

    return answer


def _sent_id(scope: Mapping[str, Any]) -> str | None:
    for name, value in scope["headers"]:
        if name == b"x-request-id" and _SANE.fullmatch(value):
            return str(value, "ascii")
    return None
