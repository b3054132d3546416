"""`POST /v1/completions`. Knows what a completion is made of; leaves a request's life to `generation`."""

from typing import Any

from litestar import Request, Response, post
from litestar.handlers import HTTPRouteHandler

from infer_engine.protocol import Engine, GenerateRequest
from infer_server.http.error_handlers import exception_handlers
from infer_server.http.sse import named_event, plain_event
from infer_server.openai.answers import Frame
from infer_server.openai.completion_body import CompletionBody, completion_requests
from infer_server.openai.completion_replies import Completion, CompletionChunks, Echo, WholeCompletion
from infer_server.openai.generation import Accepted, Generation
from infer_server.openai.refusals import PUBLISHED_STATUSES
from infer_server.openai.reply_heads import new_head
from infer_server.openapi import error_responses, operation_with_body
from infer_server.settings import ServerSettings, SseEventNames

_ERRORS = {
    400: "Not JSON, a value of the wrong type, a missing field, an empty prompt.",
    413: "The body is too large.",
    422: "A value out of range, an unknown or unsupported field, a model that is not served, a context too long.",
    500: "The request failed.",
    503: "The queue is full, or the server is shutting down; `Retry-After` says when to try again.",
}

_EVENTS = (
    "One event per token, each a completion object with `token` and `token_id` at its top level; one at the end of "
    "each choice, with `finish_reason` and `usage` there; `[DONE]`."
)


def completion_routes(engine: Engine, *, settings: ServerSettings, served_model: str) -> list[HTTPRouteHandler]:
    """Return the handlers of `/v1/completions`."""
    kind = _Completions(engine, served_model=served_model, event_names=settings.sse_event_names)
    generation = Generation(kind, CompletionBody, engine=engine, settings=settings)

    @post(
        "/v1/completions",
        status_code=200,
        summary="Continue a prompt",
        description="Answers with one object, or with server-sent events where `stream` is true or `stream` is left "
        "out and `Accept` names `text/event-stream`.",
        operation_class=operation_with_body(CompletionBody, events=_EVENTS),
        responses=error_responses(_ERRORS),
        exception_handlers=exception_handlers(PUBLISHED_STATUSES),
    )
    async def create_completion(request: Request[Any, Any, Any]) -> Response[Completion]:
        return await generation.answer(request)

    return [create_completion]


class _Completions:
    """The kind of generation that continues prompts."""

    def __init__(self, engine: Engine, *, served_model: str, event_names: SseEventNames) -> None:
        self._engine = engine
        self._served_model = served_model
        self._event_names = event_names

    def requests(self, body: CompletionBody) -> list[GenerateRequest]:
        return completion_requests(body, served_model=self._served_model)

    def frame(self, *, accepts_events: bool) -> Frame:
        named = self._event_names == "always" or (self._event_names == "negotiated" and accepts_events)
        return named_event if named else plain_event

    async def chunks(self, accepted: Accepted[CompletionBody]) -> CompletionChunks:
        return CompletionChunks(
            new_head("cmpl", served_model=self._served_model),
            echo=await self._echo(accepted),
            num_choices=len(accepted.streams),
            token_bytes=self._engine.token_bytes,
        )

    async def whole(self, accepted: Accepted[CompletionBody]) -> WholeCompletion:
        return WholeCompletion(
            new_head("cmpl", served_model=self._served_model),
            echo=await self._echo(accepted),
            num_choices=len(accepted.streams),
            token_bytes=self._engine.token_bytes,
        )

    async def _echo(self, accepted: Accepted[CompletionBody]) -> Echo:
        if not accepted.body.echo:
            return Echo(accepted.streams, texts=())
        texts: list[str] = []
        for request in accepted.requests:
            match request.prompt:
                case str(text):
                    texts += [text] * request.params.n
                case list(token_ids):
                    texts += [await self._engine.detokenize(token_ids)] * request.params.n
        return Echo(accepted.streams, texts=texts)
