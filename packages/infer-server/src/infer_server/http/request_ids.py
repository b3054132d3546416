"""`X-Request-Id`: on every reply the client's own, if it sent a sane one. A word for logs, never a key."""

import re
import uuid
from collections.abc import Mapping
from typing import Any

from litestar.types import Message, Scope

_SANE = re.compile(rb"[\x21-\x7e]{1,128}")
_STATE_KEY = "infer_request_id"


def request_id(scope: Scope) -> str:
    """Return the id of the request of `scope`: the client's, or one made up on the first call."""
    state: dict[str, Any] = scope["state"]
    if _STATE_KEY not in state:
        state[_STATE_KEY] = _sent_id(scope) or f"req-{uuid.uuid4().hex}"
    found: str = state[_STATE_KEY]
    return found


async def add_request_id(message: Message, scope: Scope) -> None:
    """Put the header on a reply that is about to start; a hook for `before_send`."""
    if message["type"] == "http.response.start":
        header = (b"x-request-id", request_id(scope).encode("ascii"))
        message["headers"] = [*message.get("headers", []), header]


def _sent_id(scope: Mapping[str, Any]) -> str | None:
    for name, value in scope["headers"]:
        if name == b"x-request-id" and _SANE.fullmatch(value):
            return str(value, "ascii")
    return None
