"""`POST /v1/responses` and `/v1/responses/render`."""

from collections.abc import Sequence
from typing import Any

from litestar import Request, Response, post
from litestar.handlers import HTTPRouteHandler

from infer_engine.protocol import Engine, GenerateRequest
from infer_server.api.handler import (
    COMMON_ERRORS,
    NEGOTIATED_RESPONSE,
    RENDERING,
    AcceptedRequest,
    Endpoint,
    GenerationHandler,
    RenderedPrompt,
)
from infer_server.http.error_handlers import exception_handlers
from infer_server.http.sse import EventStream
from infer_server.openai.responses.events import ResponseEvents
from infer_server.openai.responses.request import ResponsesBody, responses_request
from infer_server.openai.responses.response import ResponseBuilder, ResponseObject
from infer_server.openai.responses.text_format import format_place
from infer_server.openapi import error_responses, operation_with_body
from infer_server.settings import ServerSettings

_ERRORS = {
    400: "Not JSON, a value that is wrong or not supported, a context too long, a model without a chat template.",
    404: "The model is not served.",
} | COMMON_ERRORS

_EVENTS = (
    "OpenAI's events, each with its name and a `sequence_number`, from `response.created` to `response.completed`, "
    "`response.incomplete` or `response.failed`; an `error` if the server breaks off."
)

# The engine's names of fields, and the client's.
_PARAMS = {"prompt": "input", "messages": "input", "max_tokens": "max_output_tokens"}


class _ResponsesEndpoint(Endpoint[ResponsesBody]):
    """Makes requests of items, and responses of the outputs."""

    def requests(self, body: ResponsesBody) -> list[GenerateRequest]:
        return [responses_request(body, served_model=self.served_model)]

    def format_place(self, body: ResponsesBody) -> tuple[str, str]:
        return format_place(body.text)

    async def events(self, accepted: AcceptedRequest[ResponsesBody]) -> EventStream:
        answer = self._answer(accepted)
        return EventStream(events=answer.events(), error_event=answer.error_event)

    async def complete(self, accepted: AcceptedRequest[ResponsesBody]) -> ResponseObject:
        return await self._answer(accepted).whole()

    def _answer(self, accepted: AcceptedRequest[ResponsesBody]) -> ResponseEvents:
        [stream] = accepted.streams
        [request] = accepted.requests
        builder = ResponseBuilder(
            accepted.body, request.params, served_model=self.served_model, prompt_token_ids=stream.prompt_token_ids
        )
        return ResponseEvents(stream, builder)


def responses_routes(
    engine: Engine, *, settings: ServerSettings, served_models: Sequence[str]
) -> list[HTTPRouteHandler]:
    """Return the handlers of `/v1/responses`."""
    handler = GenerationHandler(
        _ResponsesEndpoint, ResponsesBody, engine=engine, settings=settings, served_models=served_models
    )

    @post(
        "/v1/responses",
        status_code=200,
        summary="Answer a conversation, given as items; nothing is stored",
        description=NEGOTIATED_RESPONSE,
        operation_class=operation_with_body(ResponsesBody, events=_EVENTS),
        responses=error_responses(_ERRORS),
        exception_handlers=exception_handlers(params=_PARAMS),
    )
    async def create_response(request: Request[Any, Any, Any]) -> Response[ResponseObject]:
        return await handler.respond(request)

    @post(
        "/v1/responses/render",
        status_code=200,
        summary=RENDERING,
        operation_class=operation_with_body(ResponsesBody),
        responses=error_responses(_ERRORS),
        exception_handlers=exception_handlers(params=_PARAMS),
    )
    async def render_response(request: Request[Any, Any, Any]) -> RenderedPrompt:
        [rendered] = await handler.render(request)
        return rendered

    return [create_response, render_response]
