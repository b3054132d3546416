"""`POST /v1/completions` and `/v1/completions/render`."""

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
from infer_server.api.outputs import read_to_the_end
from infer_server.api.validation import PUBLISHED_STATUSES
from infer_server.http.error_handlers import exception_handlers
from infer_server.http.sse import EventStream, named_event, plain_event
from infer_server.openai.chunks import event_stream
from infer_server.openai.completions.request import CompletionBody, completion_requests
from infer_server.openai.completions.response import ChoicePieces, Completion, CompletionBuilder, CompletionChunkBuilder
from infer_server.openai.response_head import new_response_head
from infer_server.openai.returned_ids import ReturnedIds
from infer_server.openai.structured_outputs import format_place
from infer_server.openapi import error_responses, operation_with_body
from infer_server.settings import ServerSettings

_ERRORS = {
    400: "Not JSON, a value of the wrong type, a missing field, an empty prompt.",
    422: "A value out of range, an unknown or unsupported field, a model that is not served, a context too long.",
} | COMMON_ERRORS

_EVENTS = (
    "One event per token, each a completion object with `token` and `token_id` at its top level; one at the end of "
    "each choice, with `finish_reason` there, and `usage` unless `include_usage` asks for one of all choices; `[DONE]`."
)


class _CompletionEndpoint(Endpoint[CompletionBody]):
    """Makes requests of prompts, and completions of the outputs."""

    def requests(self, body: CompletionBody) -> list[GenerateRequest]:
        return completion_requests(body, served_model=self.served_model)

    def format_place(self, body: CompletionBody) -> tuple[str, str]:
        return format_place(body)

    async def events(self, accepted: AcceptedRequest[CompletionBody]) -> EventStream:
        names = self.settings.sse_event_names
        is_named = names == "always" or (names == "negotiated" and accepted.accepts_events)
        head = new_response_head("cmpl", served_model=self.served_model)
        options = accepted.body.stream_options
        counts_choices = not (options and options.include_usage)  # its last chunk counts them: adding up counts once
        chunks = CompletionChunkBuilder(head, await self._pieces(accepted), counts_choices=counts_choices)
        return event_stream(accepted, chunks, encode=named_event if is_named else plain_event)

    async def complete(self, accepted: AcceptedRequest[CompletionBody]) -> Completion:
        head = new_response_head("cmpl", served_model=self.served_model)
        builder = CompletionBuilder(await self._pieces(accepted), num_choices=len(accepted.streams))
        ids = ReturnedIds(accepted)
        await read_to_the_end(accepted.streams, ids.beside(builder.add))
        return ids.into(builder.build(head, choices_per_prompt=accepted.choices_per_prompt))

    async def _pieces(self, accepted: AcceptedRequest[CompletionBody]) -> ChoicePieces:
        texts: list[str] = []  # that of the prompt, for each choice
        for request in accepted.requests if accepted.body.echo else ():
            match request.prompt:
                case str(text):
                    texts += [text] * request.params.n
                case list(token_ids):
                    texts += [await self.engine.detokenize(token_ids)] * request.params.n
        return ChoicePieces(accepted.streams, echoed_texts=texts, token_bytes=self.engine.token_bytes)


def completion_handler(
    engine: Engine, *, settings: ServerSettings, served_models: Sequence[str]
) -> GenerationHandler[CompletionBody]:
    """Return what answers prompts."""
    return GenerationHandler(
        _CompletionEndpoint, CompletionBody, engine=engine, settings=settings, served_models=served_models
    )


def completion_routes(
    engine: Engine, *, settings: ServerSettings, served_models: Sequence[str]
) -> list[HTTPRouteHandler]:
    """Return the handlers of `/v1/completions`."""
    handler = completion_handler(engine, settings=settings, served_models=served_models)

    @post(
        "/v1/completions",
        status_code=200,
        summary="Continue a prompt",
        description=NEGOTIATED_RESPONSE,
        operation_class=operation_with_body(CompletionBody, events=_EVENTS),
        responses=error_responses(_ERRORS),
        exception_handlers=exception_handlers(PUBLISHED_STATUSES),
    )
    async def create_completion(request: Request[Any, Any, Any]) -> Response[Completion]:
        return await handler.respond(request)

    @post(
        "/v1/completions/render",
        status_code=200,
        summary=RENDERING,
        operation_class=operation_with_body(CompletionBody),
        responses=error_responses(_ERRORS),
        exception_handlers=exception_handlers(PUBLISHED_STATUSES),
    )
    async def render_completion(request: Request[Any, Any, Any]) -> list[RenderedPrompt]:
        return await handler.render(request)

    return [create_completion, render_completion]
