"""`POST /v1/completions`."""

from collections.abc import Sequence
from typing import Any

from litestar import Request, Response, post
from litestar.handlers import HTTPRouteHandler

from infer_engine.protocol import Engine, GenerateRequest
from infer_server.api.handler import COMMON_ERRORS, AcceptedRequest, GenerationHandler
from infer_server.api.validation import PUBLISHED_STATUSES
from infer_server.http.error_handlers import exception_handlers
from infer_server.http.sse import EventEncoder, named_event, plain_event
from infer_server.openai.completions.request import CompletionBody, completion_requests
from infer_server.openai.completions.response import (
    ChoicePieces,
    Completion,
    CompletionChunkBuilder,
    CompletionResponseBuilder,
)
from infer_server.openai.endpoint import RESPONSE_DESCRIPTION, ChunkedEndpoint
from infer_server.openai.response_head import ResponseHead, new_response_head
from infer_server.openapi import error_responses, operation_with_body
from infer_server.settings import ServerSettings, SseEventNames

_ERRORS = {
    400: "Not JSON, a value of the wrong type, a missing field, an empty prompt.",
    422: "A value out of range, an unknown or unsupported field, a model that is not served, a context too long.",
} | COMMON_ERRORS

_EVENTS = (
    "One event per token, each a completion object with `token` and `token_id` at its top level; one at the end of "
    "each choice, with `finish_reason` and `usage` there; `[DONE]`."
)


def completion_routes(
    engine: Engine, *, settings: ServerSettings, served_models: Sequence[str]
) -> list[HTTPRouteHandler]:
    """Return the handlers of `/v1/completions`."""
    endpoints = {
        name: _CompletionEndpoint(engine, served_model=name, event_names=settings.sse_event_names)
        for name in served_models
    }
    handler = GenerationHandler(endpoints, CompletionBody, engine=engine, settings=settings)

    @post(
        "/v1/completions",
        status_code=200,
        summary="Continue a prompt",
        description=RESPONSE_DESCRIPTION,
        operation_class=operation_with_body(CompletionBody, events=_EVENTS),
        responses=error_responses(_ERRORS),
        exception_handlers=exception_handlers(PUBLISHED_STATUSES),
    )
    async def create_completion(request: Request[Any, Any, Any]) -> Response[Completion]:
        return await handler.respond(request)

    return [create_completion]


class _CompletionEndpoint(ChunkedEndpoint[CompletionBody, Completion]):
    """Makes requests of prompts, and completions of the outputs."""

    def __init__(self, engine: Engine, *, served_model: str, event_names: SseEventNames) -> None:
        self._engine = engine
        self._served_model = served_model
        self._event_names = event_names

    def requests(self, body: CompletionBody) -> list[GenerateRequest]:
        return completion_requests(body, served_model=self._served_model)

    def event_encoder(self, *, accepts_events: bool) -> EventEncoder:
        named = self._event_names == "always" or (self._event_names == "negotiated" and accepts_events)
        return named_event if named else plain_event

    async def chunk_builder(self, accepted: AcceptedRequest[CompletionBody]) -> CompletionChunkBuilder:
        return CompletionChunkBuilder(self._head(), await self._pieces(accepted))

    async def response_builder(self, accepted: AcceptedRequest[CompletionBody]) -> CompletionResponseBuilder:
        pieces = await self._pieces(accepted)
        return CompletionResponseBuilder(self._head(), pieces, num_choices=len(accepted.streams))

    def _head(self) -> ResponseHead:
        return new_response_head("cmpl", served_model=self._served_model)

    async def _pieces(self, accepted: AcceptedRequest[CompletionBody]) -> ChoicePieces:
        texts = await self._prompt_texts(accepted.requests) if accepted.body.echo else []
        return ChoicePieces(accepted.streams, echoed_texts=texts, token_bytes=self._engine.token_bytes)

    async def _prompt_texts(self, requests: list[GenerateRequest]) -> list[str]:
        """Return the prompt's text for each choice of `requests`."""
        texts: list[str] = []
        for request in requests:
            match request.prompt:
                case str(text):
                    texts += [text] * request.params.n
                case list(token_ids):
                    texts += [await self._engine.detokenize(token_ids)] * request.params.n
        return texts
