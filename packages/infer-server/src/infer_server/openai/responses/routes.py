"""`POST /v1/responses`, and below it `input_tokens` and `render`."""

from collections.abc import Sequence
from functools import partial
from typing import Any, Literal

import msgspec
from litestar import Request, Response, post
from litestar.handlers import HTTPRouteHandler

from infer_engine.protocol import Engine, GenerateRequest
from infer_server.api.foreign_fields import decode_fields
from infer_server.api.handler import (
    COMMON_ERRORS,
    NEGOTIATED_RESPONSE,
    RENDERING,
    AcceptedRequest,
    Endpoint,
    GenerationHandler,
    RenderedPrompt,
    served_name,
)
from infer_server.http.authentication import tenant
from infer_server.http.bodies import read_body
from infer_server.http.disconnects import unless_disconnected
from infer_server.http.error_handlers import exception_handlers
from infer_server.http.sse import EventStream
from infer_server.openai.responses.events import ResponseEvents
from infer_server.openai.responses.item_store import ItemStore
from infer_server.openai.responses.references import keep_response, resolved_body
from infer_server.openai.responses.request import ResolvedBody, ResponsesBody, prompt_of, responses_request
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


class InputTokens(msgspec.Struct, frozen=True, kw_only=True):
    """The answer of `/v1/responses/input_tokens`."""

    object: Literal["response.input_tokens"] = "response.input_tokens"
    input_tokens: int


class _ResponsesEndpoint(Endpoint[ResolvedBody]):
    """Makes requests of items, and responses of the outputs."""

    def __init__(self, engine: Engine, *, served_model: str, settings: ServerSettings, store: ItemStore) -> None:
        """Serve `engine` under the name `served_model`; `store` keeps the responses."""
        super().__init__(engine, served_model=served_model, settings=settings)
        self._store = store

    def resolved(self, body: ResponsesBody, *, owner: str | None) -> ResolvedBody:
        return resolved_body(body, self._store, owner=owner)

    def requests(self, body: ResolvedBody) -> list[GenerateRequest]:
        return [responses_request(body, served_model=self.served_model)]

    def format_place(self, body: ResolvedBody) -> tuple[str, str]:
        return format_place(body.text)

    async def events(self, accepted: AcceptedRequest[ResolvedBody]) -> EventStream:
        answer = self._answer(accepted)
        return EventStream(events=answer.events(), error_event=answer.error_event)

    async def complete(self, accepted: AcceptedRequest[ResolvedBody]) -> ResponseObject:
        return await self._answer(accepted).whole()

    def _answer(self, accepted: AcceptedRequest[ResolvedBody]) -> ResponseEvents:
        [stream] = accepted.streams
        [request] = accepted.requests
        builder = ResponseBuilder(
            accepted.body, request.params, served_model=self.served_model, prompt_token_ids=stream.prompt_token_ids
        )

        def keep(response: ResponseObject) -> None:
            keep_response(accepted.body, response.id, response.output, self._store, owner=request.tenant)

        return ResponseEvents(stream, builder, keep=keep)


def responses_routes(
    engine: Engine, *, settings: ServerSettings, served_models: Sequence[str]
) -> list[HTTPRouteHandler]:
    """Return the handlers of `/v1/responses`."""
    store = ItemStore()
    endpoint = partial(_ResponsesEndpoint, store=store)
    handler = GenerationHandler(endpoint, ResponsesBody, engine=engine, settings=settings, served_models=served_models)

    @post(
        "/v1/responses",
        status_code=200,
        summary="Answer a conversation, given as items",
        description=NEGOTIATED_RESPONSE,
        operation_class=operation_with_body(ResponsesBody, events=_EVENTS),
        responses=error_responses(_ERRORS),
        exception_handlers=exception_handlers(params=_PARAMS),
    )
    async def create_response(request: Request[Any, Any, Any]) -> Response[ResponseObject]:
        return await handler.respond(request)

    @post(
        "/v1/responses/input_tokens",
        status_code=200,
        summary="Count the tokens of a conversation, given as items",
        operation_class=operation_with_body(ResponsesBody),
        responses=error_responses(_ERRORS),
        exception_handlers=exception_handlers(params=_PARAMS),
    )
    async def count_input_tokens(request: Request[Any, Any, Any]) -> InputTokens:
        body = decode_fields(await read_body(request, settings.max_body_bytes), ResponsesBody)
        resolved = resolved_body(body, store, owner=tenant(request.scope))
        prompt = prompt_of(resolved, served_model=served_name(body.model, served_models))
        return InputTokens(input_tokens=len(await unless_disconnected(engine.tokenize(prompt), request.receive)))

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

    return [create_response, count_input_tokens, render_response]
