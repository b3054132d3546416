"""`POST /invocations`, SageMaker's one path for all requests: a field of the body says whose route it is for."""

from collections.abc import Sequence
from typing import Any

import msgspec
from litestar import Request, Response, post
from litestar.handlers import HTTPRouteHandler

from infer_engine.protocol import Engine, RequestRefusedError
from infer_server.api.handler import COMMON_ERRORS, GenerationHandler
from infer_server.errors import ApiError, refusal_error
from infer_server.http.bodies import not_json, read_body
from infer_server.http.error_handlers import exception_handlers
from infer_server.openai.chat.request import ChatBody
from infer_server.openai.chat.routes import PARAMS as CHAT_PARAMS
from infer_server.openai.chat.routes import chat_handler
from infer_server.openai.completions.request import CompletionBody
from infer_server.openai.completions.routes import completion_handler
from infer_server.openapi import error_responses, operation_with_body
from infer_server.settings import ServerSettings

_ERRORS = {
    400: "Not JSON, neither `messages` nor `prompt`, or what the route of such a body refuses.",
    404: "The model is not served.",
} | COMMON_ERRORS


def invocation_routes(
    engine: Engine, *, settings: ServerSettings, served_models: Sequence[str]
) -> list[HTTPRouteHandler]:
    """Return the handler of `/invocations`."""
    chats = chat_handler(engine, settings=settings, served_models=served_models)
    completions = completion_handler(engine, settings=settings, served_models=served_models)
    by_field: dict[str, tuple[GenerationHandler[Any], dict[str, str]]] = {
        "messages": (chats, CHAT_PARAMS),
        "prompt": (completions, {}),
    }

    @post(
        "/invocations",
        status_code=200,
        summary="Answer a conversation or continue a prompt, under SageMaker's path",
        description="A body with `messages` is one of `/v1/chat/completions`, one with `prompt` of `/v1/completions`.",
        operation_class=operation_with_body(ChatBody, CompletionBody, events="Those of either route."),
        responses=error_responses(_ERRORS),
        exception_handlers=exception_handlers(),
    )
    async def invoke(request: Request[Any, Any, Any]) -> Response[Any]:
        raw = await read_body(request, settings.max_body_bytes)
        fields = _fields(raw)
        found = next((by_field[name] for name in by_field if name in fields), None)
        if found is None:
            message = "`messages` and `prompt` are missing; send one of them: there are chats and completions here."
            raise ApiError(400, message, code="missing_field", param="messages")
        handler, params = found
        try:
            return await handler.respond_to(raw, request)
        except RequestRefusedError as refusal:
            raise refusal_error(refusal, params=params) from None

    return [invoke]


def _fields(raw: bytes) -> dict[str, msgspec.Raw]:
    try:
        return msgspec.json.decode(raw, type=dict[str, msgspec.Raw])
    except msgspec.ValidationError:  # JSON, but no object
        return {}
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise not_json(error, raw) from None
