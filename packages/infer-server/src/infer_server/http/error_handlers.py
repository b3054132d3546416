"""Exception handlers: turn every exception that leaves a route into an error reply."""

import logging
from collections.abc import Mapping
from http import HTTPStatus
from types import MappingProxyType
from typing import Any

from litestar import Request, Response
from litestar.exceptions import HTTPException, MethodNotAllowedException, NotFoundException
from litestar.types import ExceptionHandlersMap

from infer_engine.protocol import RequestRefusedError
from infer_server.errors import (
    ApiError,
    ErrorShape,
    RefusalWords,
    engine_words,
    internal_error,
    openai_shape,
    refusal_error,
    shape_reply,
    shorten,
)
from infer_server.http.bodies import ClientDisconnectedError
from infer_server.http.request_ids import request_id

logger = logging.getLogger(__name__)

_CLIENT_CLOSED_REQUEST = 499  # nginx's status; no client reads it
_MAX_ECHO_CHARACTERS = 100

AnyRequest = Request[Any, Any, Any]


def exception_handlers(
    statuses: Mapping[str, int] = MappingProxyType({}),
    *,
    params: Mapping[str, str] = MappingProxyType({}),
    shape: ErrorShape = openai_shape,
    words: RefusalWords = engine_words,
) -> ExceptionHandlersMap:
    """Return a handler for every exception of a route, or of the routing itself.

    `statuses` replaces the status for some error codes; `params` maps the engine's names of fields to the route's;
    `shape` makes the status and the body of a reply, `words` the message of what the engine refuses.
    """

    def reply(request: AnyRequest, error: ApiError) -> Response[Any]:
        status, body = shape_reply(error, request.scope, shape)
        return Response(body, status_code=status, headers=error.headers, media_type="application/json")

    def on_api_error(request: AnyRequest, error: ApiError) -> Response[Any]:
        return reply(request, error.with_status_from(statuses))

    def on_refusal(request: AnyRequest, refusal: RequestRefusedError) -> Response[Any]:
        return reply(request, refusal_error(refusal, params=params, words=words).with_status_from(statuses))

    def on_http_exception(request: AnyRequest, error: HTTPException) -> Response[Any]:
        return reply(request, _of_http_exception(request, error))

    def on_unexpected(request: AnyRequest, error: Exception) -> Response[Any]:
        return reply(request, _of_unexpected(request, error))

    return {
        ApiError: on_api_error,
        RequestRefusedError: on_refusal,
        ClientDisconnectedError: _on_disconnect,
        HTTPException: on_http_exception,
        Exception: on_unexpected,
    }


def _on_disconnect(_: AnyRequest, __: ClientDisconnectedError) -> Response[Any]:
    return Response(b"", status_code=_CLIENT_CLOSED_REQUEST)


def _of_http_exception(request: AnyRequest, error: HTTPException) -> ApiError:
    method, path = _printable(request.scope["method"]), _printable(request.scope["path"])
    match error:
        case NotFoundException():
            meant = _meant_path(request)
            there = "`/schema` lists what there is" if meant is None else f"`{meant}` is what you may mean"
            if meant is None and path.startswith("/api/"):
                there = "that is Ollama's API, and this server has OpenAI's, below `/v1`"
            message = f"There is nothing at `{path}`; {there}."
        case MethodNotAllowedException():
            message = f"`{path}` does not take {method}; `/schema` lists what it takes."
        case _ if error.status_code >= 500:
            return _of_unexpected(request, error)
        case _:
            message = f"{method} `{path}` was refused: {HTTPStatus(error.status_code).phrase.lower()}."
    code = HTTPStatus(error.status_code).name.lower()
    reply = ApiError(error.status_code, message, code=code)
    reply.headers = {**reply.headers, **(error.headers or {})}
    return reply


def _meant_path(request: AnyRequest) -> str | None:
    """Return the path of the route that a client's path seems to mean, from mistakes in base URLs; None: none.

    Such as `/v1/v1/models`, `/models` and `/openai/v1/models`, or a whole path as a base: the longest that fits.
    """
    asked = request.scope["path"].rstrip("/").lower()
    known = [route.path for route in request.app.routes if route.path.count("/") > 1 and "{" not in route.path]
    fitting = [path for path in known if asked.endswith(path) or path == f"/v1{asked}" or asked.startswith(f"{path}/")]
    return max(fitting, key=len, default=None)


def _printable(text: str) -> str:
    """Return what a client sent, shortened and safe to print in terminals and logs."""
    return "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in shorten(text, _MAX_ECHO_CHARACTERS))


def _of_unexpected(request: AnyRequest, error: Exception) -> ApiError:
    logger.error("request %s failed", request_id(request.scope), exc_info=error)
    return internal_error()
