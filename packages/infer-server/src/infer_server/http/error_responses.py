"""Sends errors from outside the framework: from ASGI middleware, and from the connection itself."""

import msgspec
from litestar.types import HTTPResponseBodyEvent, HTTPResponseStartEvent, Scope, Send

from infer_server.errors import ApiError, ErrorShape, openai_shape, shape_reply

_REASONS = {
    400: b"Bad Request",
    408: b"Request Timeout",
    431: b"Request Header Fields Too Large",
    501: b"Not Implemented",
    503: b"Service Unavailable",
    505: b"HTTP Version Not Supported",
}


async def send_error(error: ApiError, scope: Scope, send: Send, *, shape: ErrorShape = openai_shape) -> None:
    """Answer the ASGI request of `scope` with `error`, in the `shape` of its API."""
    status, reply = shape_reply(error, scope, shape)
    body = msgspec.json.encode(reply)
    start: HTTPResponseStartEvent = {
        "type": "http.response.start",
        "status": status,
        "headers": _headers(error, body),
    }
    end: HTTPResponseBodyEvent = {"type": "http.response.body", "body": body, "more_body": False}
    await send(start)
    await send(end)


def closing_response(error: ApiError, *, request_id: str) -> bytes:
    """Return the complete HTTP/1.1 response with `error`, after which the connection closes."""
    body = msgspec.json.encode(error.reply)
    headers = [*_headers(error, body), (b"x-request-id", request_id.encode("ascii")), (b"connection", b"close")]
    lines = [b"HTTP/1.1 %d %s" % (error.status, _REASONS[error.status])]
    lines += [b"%s: %s" % header for header in headers]
    return b"\r\n".join((*lines, b"", body))


def _headers(error: ApiError, body: bytes) -> list[tuple[bytes, bytes]]:
    own = [(name.lower().encode("ascii"), value.encode("ascii")) for name, value in error.headers.items()]
    return [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(body)), *own]
