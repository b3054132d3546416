"""Errors as Anthropic's clients read them: `{"type": "error", "error": {"type", "message"}, "request_id"}`."""

from typing import Literal

import msgspec
from litestar.types import Scope
from msgspec import UNSET, UnsetType

from infer_engine.protocol import ContextLengthExceededError, RequestRefusedError
from infer_server.errors import ApiError, ErrorReply, openai_shape
from infer_server.http.request_ids import request_id
from infer_server.http.sse import named_event

PATHS = "/v1/messages"
"""What the paths begin with whose errors look like this."""

REQUEST_ID_HEADER = "request-id"
OVERLOADED = 529
_TYPES = {
    401: "authentication_error",
    404: "not_found_error",
    413: "request_too_large",
    OVERLOADED: "overloaded_error",
}


class MessageErrorBody(msgspec.Struct, frozen=True, kw_only=True):
    """The error: for a program, and for a person."""

    type: str
    message: str


class MessageErrorReply(msgspec.Struct, frozen=True, kw_only=True):
    """The body of every reply under `/v1/messages` that is not a success; the error of a stream has no request id."""

    type: Literal["error"] = "error"
    error: MessageErrorBody
    request_id: str | UnsetType = UNSET


def error_shape(error: ApiError, scope: Scope) -> tuple[int, msgspec.Struct]:
    """Return the status and the body of a reply with `error`: OpenAI's, but Anthropic's under `/v1/messages`.

    Anthropic's status of a server that is full, or stops, is 529.
    """
    if scope["path"] != PATHS and not scope["path"].startswith(f"{PATHS}/"):
        return openai_shape(error, scope)
    status = OVERLOADED if error.status == 503 else error.status
    body = MessageErrorBody(type=_type_of(status), message=error.reply.error.message)
    return status, MessageErrorReply(error=body, request_id=request_id(scope))


def refusal_words(refusal: RequestRefusedError) -> str:
    """Return why the engine refused a request; agents compact a conversation where these are Anthropic's words."""
    match refusal:
        case ContextLengthExceededError(num_prompt_tokens=count, max_seq_len=most):
            return f"prompt is too long: {count} tokens > {min(most, count - 1)} maximum"
        case _:
            return refusal.message


def error_event(reply: ErrorReply) -> bytes:
    """Return the event that ends a stream with an error."""
    kind = "overloaded_error" if reply.error.code == "engine_unavailable" else "api_error"
    body = MessageErrorBody(type=kind, message=reply.error.message)
    return named_event("error", MessageErrorReply(error=body))


def _type_of(status: int) -> str:
    return _TYPES.get(status, "api_error" if status >= 500 else "invalid_request_error")
