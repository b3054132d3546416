"""`POST /v1/responses`."""

from typing import Any

from litestar import Request, Response, post
from litestar.handlers import HTTPRouteHandler

from infer_engine.protocol import Engine, GenerateRequest, InvalidRequestError
from infer_server.errors import ApiError
from infer_server.generation.handler import COMMON_ERRORS, AcceptedRequest, GenerationHandler
from infer_server.http.error_handlers import exception_handlers
from infer_server.http.sse import EventStream
from infer_server.openai.responses.events import ResponseEvents
from infer_server.openai.responses.request import ResponsesBody, responses_request
from infer_server.openai.responses.response import ResponseBuilder, ResponseObject
from infer_server.openapi import error_responses, operation_with_body
from infer_server.settings import ServerSettings

_ERRORS = {
    400: "Not JSON, a value that is wrong, an item that is not supported, a context too long, a model without a chat "
    "template.",
    404: "The model is not served.",
} | COMMON_ERRORS

_EVENTS = (
    "Events with names and a `sequence_number`, from `response.created` to `response.completed`, `response.incomplete` "
    "or `response.failed`."
)


def responses_routes(engine: Engine, *, settings: ServerSettings, served_model: str) -> list[HTTPRouteHandler]:
    """Return the handler of `/v1/responses`."""
    endpoint = _ResponsesEndpoint(served_model=served_model)
    handler = GenerationHandler(endpoint, ResponsesBody, engine=engine, settings=settings)
    names = {"prompt": "input", "messages": "input", "max_tokens": "max_output_tokens"}

    @post(
        "/v1/responses",
        status_code=200,
        summary="Answer a conversation, in the words of OpenAI's Responses API",
        description="Answers with one object, or with server-sent events where `stream` is true. Nothing is stored.",
        operation_class=operation_with_body(ResponsesBody, events=_EVENTS),
        responses=error_responses(_ERRORS),
        exception_handlers=exception_handlers(params={**names, "structured_outputs": "text.format"}),
    )
    async def create_response(request: Request[Any, Any, Any]) -> Response[ResponseObject]:
        return await handler.respond(request)

    return [create_response]


class _ResponsesEndpoint:
    """Makes requests of inputs, and responses of the outputs."""

    def __init__(self, *, served_model: str) -> None:
        self._served_model = served_model

    def requests(self, body: ResponsesBody) -> list[GenerateRequest]:
        return [responses_request(body, served_model=self._served_model)]

    def is_streaming(self, body: ResponsesBody, *, accepts_events: bool) -> bool:  # noqa: ARG002 - `stream` alone decides
        return bool(body.stream)

    def refusal(self, _: InvalidRequestError, __: ResponsesBody) -> ApiError | None:
        return None  # the route's names of fields say enough

    async def events(self, accepted: AcceptedRequest[ResponsesBody], *, accepts_events: bool) -> EventStream:  # noqa: ARG002 - as above
        answer = self._answer(accepted)
        return EventStream(events=answer.events(), error_event=answer.error_event)

    async def complete(self, accepted: AcceptedRequest[ResponsesBody]) -> ResponseObject:
        return await self._answer(accepted).whole()

    def _answer(self, accepted: AcceptedRequest[ResponsesBody]) -> ResponseEvents:
        [stream] = accepted.streams
        return ResponseEvents(stream, ResponseBuilder(accepted.body, served_model=self._served_model))
