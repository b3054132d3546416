"""Errors as Anthropic's clients read them: `{"type": "error", "error": {"type", "message"}}`."""

from typing import Literal

import msgspec

from infer_server.errors import ApiError, ErrorReply
from infer_server.http.sse import named_event

PATHS = "/v1/messages"
"""What the paths begin with whose errors look like this."""

OVERLOADED = 529
_TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    404: "not_found_error",
    405: "invalid_request_error",
    413: "request_too_large",
    OVERLOADED: "overloaded_error",
}


class MessageErrorBody(msgspec.Struct, frozen=True, kw_only=True):
    """What went wrong: for a program, and for a person."""

    type: str
    message: str


class MessageErrorReply(msgspec.Struct, frozen=True, kw_only=True):
    """The body of every reply under `/v1/messages` that is not a success."""

    type: Literal["error"] = "error"
    error: MessageErrorBody


def shape_error(error: ApiError) -> tuple[int, MessageErrorReply]:
    """Return the status and the body of a reply with `error`; a server that is full or stops is 529, as Anthropic's."""
    status = OVERLOADED if error.status == 503 else error.status
    kind = _TYPES.get(status, "api_error")
    return status, MessageErrorReply(error=MessageErrorBody(type=kind, message=error.reply.error.message))


def error_event(reply: ErrorReply) -> bytes:
    """Return the event that ends a stream with an error."""
    kind = "overloaded_error" if reply.error.code == "engine_unavailable" else "api_error"
    body = MessageErrorBody(type=kind, message=reply.error.message)
    return named_event("error", MessageErrorReply(error=body))
