"""`X-Request-Id`: every reply has the client's id, if it sent a valid one, or a generated one. It is only for logs.

The clients of some APIs look for it under another name: their replies have both.
"""

import random
import re
from collections.abc import Awaitable, Mapping
from typing import Any

from litestar.types import ASGIApp, Message, Receive, Scope, Send

_VALID_ID = re.compile(rb"[\x21-\x7e]{1,128}")
_STATE_KEY = "infer_request_id"
_random = random.Random()  # noqa: S311 - seeded by the system; ids are no secrets


def request_id(scope: Scope) -> str:
    """Return the id of the request of `scope`: the client's, or one generated on the first call."""
    state: dict[str, Any] = scope.setdefault("state", {})
    if _STATE_KEY not in state:
        state[_STATE_KEY] = _sent_id(scope) or new_request_id()
    found: str = state[_STATE_KEY]
    return found


def new_request_id() -> str:
    """Return a unique id."""
    return f"req-{unique_hex()}"


def unique_hex() -> str:
    """Return 128 random bits as hex digits: unique, and no secret. They take no call to the system."""
    return f"{_random.getrandbits(128):032x}"


def with_request_ids(app: ASGIApp, *, other_names: Mapping[str, str]) -> ASGIApp:
    """Return `app` with the header on every reply; `other_names`: a second one, by the beginning of paths."""
    others = [(path, name.encode("ascii")) for path, name in other_names.items()]

    async def answer(scope: Scope, receive: Receive, send: Send) -> None:
        def send_with_id(message: Message) -> Awaitable[None]:
            if message["type"] == "http.response.start":
                identifier = request_id(scope).encode("ascii")
                names = [b"x-request-id", *(name for path, name in others if scope["path"].startswith(path))]
                message["headers"] = [*message.get("headers", []), *((name, identifier) for name in names)]
            return send(message)

        await app(scope, receive, send_with_id)

    return answer


def _sent_id(scope: Mapping[str, Any]) -> str | None:
    for name, value in scope["headers"]:
        if name == b"x-request-id" and _VALID_ID.fullmatch(value):
            return str(value, "ascii")
    return None
