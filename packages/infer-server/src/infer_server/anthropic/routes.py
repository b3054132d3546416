"""`POST /v1/messages`, and below it `count_tokens` and `render`."""

from collections.abc import Sequence
from typing import Any

from litestar import Request, Response, post
from litestar.handlers import HTTPRouteHandler

from infer_engine.protocol import Engine, GenerateRequest
from infer_server.anthropic.errors import PATHS, MessageErrorReply, error_event, error_shape, refusal_words
from infer_server.anthropic.request import (
    CountTokensBody,
    MessagesBody,
    format_of,
    messages_request,
    prompt_of,
    shows_thinking,
)
from infer_server.anthropic.response import PING, MessageBuilder, MessageReply, TokenCount
from infer_server.api.foreign_fields import decode_fields
from infer_server.api.handler import (
    COMMON_ERRORS,
    RENDERING,
    AcceptedRequest,
    Endpoint,
    GenerationHandler,
    RenderedPrompt,
    served_name,
)
from infer_server.api.outputs import read_to_the_end
from infer_server.http.bodies import read_body
from infer_server.http.disconnects import unless_disconnected
from infer_server.http.error_handlers import exception_handlers
from infer_server.http.sse import EventStream
from infer_server.openapi import error_responses, operation_with_body
from infer_server.settings import ServerSettings

_OVERLOADED = {529: COMMON_ERRORS[503]}
_ERRORS = {
    400: "Not JSON, a value that is wrong, a block that is not supported, a context too long, a model without a chat "
    "template.",
    404: "The model is not served.",
    413: COMMON_ERRORS[413],
    500: COMMON_ERRORS[500],
} | _OVERLOADED
_EVENTS = (
    "Events with names: `message_start`; `content_block_start`, `content_block_delta` and `content_block_stop` for "
    "each block; `message_delta`, `message_stop`; `ping` in between."
)


class _MessagesEndpoint(Endpoint[MessagesBody]):
    """Makes requests of conversations, and messages of the outputs."""

    negotiates = False

    def requests(self, body: MessagesBody) -> list[GenerateRequest]:
        return [messages_request(body, served_model=self.served_model)]

    def format_place(self, body: MessagesBody) -> tuple[str, str]:
        place, _ = format_of(body)
        path = f"{place}.schema" if place else "tools"
        return path, path

    async def events(self, accepted: AcceptedRequest[MessagesBody]) -> EventStream:
        [stream] = accepted.streams
        events = self._builder(accepted).events(stream)
        return EventStream(events=events, error_event=error_event, ping=PING)

    async def complete(self, accepted: AcceptedRequest[MessagesBody]) -> MessageReply:
        builder = self._builder(accepted)
        await read_to_the_end(accepted.streams, builder.add)
        return builder.build()

    def _builder(self, accepted: AcceptedRequest[MessagesBody]) -> MessageBuilder:
        prompt_token_ids = accepted.streams[0].prompt_token_ids if accepted.body.return_token_ids else None
        return MessageBuilder(
            served_model=self.served_model,
            prompt_token_ids=prompt_token_ids,
            shows_thinking=shows_thinking(accepted.body),
        )


def message_routes(engine: Engine, *, settings: ServerSettings, served_models: Sequence[str]) -> list[HTTPRouteHandler]:
    """Return the handlers under `/v1/messages`."""
    handler = GenerationHandler(
        _MessagesEndpoint, MessagesBody, engine=engine, settings=settings, served_models=served_models
    )
    handlers = exception_handlers(params={"prompt": "messages"}, shape=error_shape, words=refusal_words)

    @post(
        PATHS,
        status_code=200,
        summary="Answer a conversation, in Anthropic's words",
        description="Answers with one message, or with server-sent events where `stream` is true.",
        operation_class=operation_with_body(MessagesBody, events=_EVENTS),
        responses=error_responses(_ERRORS, reply=MessageErrorReply),
        exception_handlers=handlers,
    )
    async def create_message(request: Request[Any, Any, Any]) -> Response[MessageReply]:
        return await handler.respond(request)

    @post(
        f"{PATHS}/count_tokens",
        status_code=200,
        summary="Count the tokens of a conversation",
        operation_class=operation_with_body(CountTokensBody),
        responses=error_responses(_ERRORS, reply=MessageErrorReply),
        exception_handlers=handlers,
    )
    async def count_tokens(request: Request[Any, Any, Any]) -> TokenCount:
        body = decode_fields(await read_body(request, settings.max_body_bytes), CountTokensBody)
        prompt = prompt_of(body, served_model=served_name(body.model, served_models))
        return TokenCount(input_tokens=len(await unless_disconnected(engine.tokenize(prompt), request.receive)))

    @post(
        f"{PATHS}/render",
        status_code=200,
        summary=RENDERING,
        operation_class=operation_with_body(MessagesBody),
        responses=error_responses(_ERRORS, reply=MessageErrorReply),
        exception_handlers=handlers,
    )
    async def render_message(request: Request[Any, Any, Any]) -> RenderedPrompt:
        [rendered] = await handler.render(request)
        return rendered

    return [create_message, count_tokens, render_message]
