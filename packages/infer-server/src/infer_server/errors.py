"""`ApiError`: an error reply, in OpenAI's shape: `{"error": {"message", "type", "param", "code"}}`.

An API that has another shape for errors makes it of this one: `ErrorShape`.
"""

from collections.abc import Callable, Mapping
from typing import Any

import msgspec
from litestar.types import Scope

from infer_engine.protocol import RequestRefusedError

MAX_MESSAGE_CHARACTERS = 500
_ERROR_KEY = "infer_error"


class ErrorBody(msgspec.Struct, frozen=True, kw_only=True):
    """The error, and what to do about it.

    Attributes:
        message: for a person to read.
        type: `invalid_request_error` or `server_error`.
        param: the request field that caused it, or null.
        code: the kind of error, for a program to read.
    """

    message: str
    type: str
    param: str | None
    code: str


class ErrorReply(msgspec.Struct, frozen=True, kw_only=True):
    """The body of every reply that is not a success."""

    error: ErrorBody


class ApiError(Exception):
    """An error that is the client's reply.

    Attributes:
        status: the HTTP status.
        reply: the body.
        headers: headers beside the usual ones.
    """

    def __init__(
        self,
        status: int,
        message: str,
        *,
        code: str,
        param: str | None = None,
        retry_after_s: int | None = None,
    ) -> None:
        """`message` is cut to 500 characters; `retry_after_s` is whole seconds for the `Retry-After` header."""
        super().__init__(message)
        self.status = status
        kind = "server_error" if status >= 500 else "invalid_request_error"
        self.reply = ErrorReply(error=ErrorBody(message=shorten(message), type=kind, param=param, code=code))
        self.headers = {} if retry_after_s is None else {"Retry-After": str(retry_after_s)}

    def __reduce__(self) -> tuple[Any, ...]:
        """Let it be pickled and copied: the constructor takes more than the message."""
        return type(self).__new__, (type(self), *self.args), vars(self)

    def with_status_from(self, statuses: Mapping[str, int]) -> "ApiError":
        """Return the same error with the status that `statuses` has for its code, if any."""
        error = self.reply.error
        copy = ApiError(statuses.get(error.code, self.status), error.message, code=error.code, param=error.param)
        copy.headers = self.headers
        return copy


ErrorShape = Callable[[ApiError, Scope], tuple[int, msgspec.Struct]]
"""Makes the status and the body of a reply with an error to the request of a scope, as the API of its path has them."""


RefusalWords = Callable[[RequestRefusedError], str]
"""Says why the engine refused a request, in the words that the clients of an API look for."""


def engine_words(refusal: RequestRefusedError) -> str:
    """Return the engine's own message, which has OpenAI's words."""
    return refusal.message


def openai_shape(error: ApiError, _: Scope) -> tuple[int, msgspec.Struct]:
    """Return the status and the body as they are."""
    return error.status, error.reply


def shape_reply(error: ApiError, scope: Scope, shape: ErrorShape) -> tuple[int, msgspec.Struct]:
    """Return the status and the body of a reply in an API's `shape`; the access log finds the error in `scope`."""
    scope.setdefault("state", {})[_ERROR_KEY] = error.reply.error
    return shape(error, scope)


def error_of(scope: Mapping[str, Any]) -> ErrorBody | None:
    """Return the error that the request of `scope` was answered with, if it was."""
    found: ErrorBody | None = scope.get("state", {}).get(_ERROR_KEY)
    return found


def missing(param: str) -> ApiError:
    """Return the error for a field that must be there."""
    return ApiError(400, f"`{param}` is missing; send it.", code="missing_field", param=param)


def shorten(text: str, limit: int = MAX_MESSAGE_CHARACTERS) -> str:
    """Cut `text` to `limit` characters, so that no reply echoes a whole request."""
    return text if len(text) <= limit else text[: limit - 1] + "…"


def internal_error() -> ApiError:
    """Return the reply for an unexpected failure; the log has its cause."""
    return ApiError(
        500,
        "The server failed on this request; its log has the cause under the reply's X-Request-Id.",
        code="internal_error",
    )


def refusal_error(
    refusal: RequestRefusedError, *, params: Mapping[str, str], words: RefusalWords = engine_words
) -> ApiError:
    """Return the reply to a request that the engine refused before it entered the queue, in the `words` of an API.

    `params` maps the engine's names of fields to the client's names, where they differ.
    """
    param = params.get(refusal.param, refusal.param) if refusal.param else None
    is_invalid = refusal.retry_after_s is None
    return ApiError(
        400 if is_invalid else 503,
        words(refusal),
        code=refusal.code,
        param=param if is_invalid else None,
        retry_after_s=refusal.retry_after_s,
    )
