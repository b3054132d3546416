"""`POST /v1/chat/completions`, and its `render`, which llama.cpp calls `/apply-template`."""

from collections.abc import Sequence
from typing import Any

from litestar import Request, Response, post
from litestar.handlers import HTTPRouteHandler

from infer_engine.protocol import ChatPrompt, Engine, GenerateRequest
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
from infer_server.http.error_handlers import exception_handlers
from infer_server.http.sse import EventStream, plain_event
from infer_server.openai.chat.request import ChatBody, chat_request
from infer_server.openai.chat.response import CallStyle, ChatBuilder, ChatChunkBuilder, ChatCompletion
from infer_server.openai.chunks import event_stream
from infer_server.openai.response_head import new_response_head
from infer_server.openai.returned_ids import ReturnedIds
from infer_server.openai.structured_outputs import format_place
from infer_server.openapi import error_responses, operation_with_body
from infer_server.settings import ServerSettings

_ERRORS = {
    400: "Not JSON, a value that is wrong, a field that is unknown or not supported, a context too long, a model "
    "without a chat template.",
    404: "The model is not served.",
} | COMMON_ERRORS

_EVENTS = (
    "`chat.completion.chunk` objects, in events without names: for each choice one with the role, one per token (two "
    "where a tool call begins) and one with `finish_reason`; then `[DONE]`."
)

# The engine's names of fields, and the client's.
PARAMS = {"prompt": "messages"}


class _ChatEndpoint(Endpoint[ChatBody]):
    """Makes requests of conversations, and chat completions of the outputs."""

    def requests(self, body: ChatBody) -> list[GenerateRequest]:
        return [chat_request(body, served_model=self.served_model)]

    def format_place(self, body: ChatBody) -> tuple[str, str]:
        return format_place(body)

    async def events(self, accepted: AcceptedRequest[ChatBody]) -> EventStream:
        head = new_response_head("chatcmpl", served_model=self.served_model)
        chunks = ChatChunkBuilder(head, token_bytes=self.engine.token_bytes, call_style=_call_style(accepted))
        return event_stream(accepted, chunks, encode=plain_event)

    async def complete(self, accepted: AcceptedRequest[ChatBody]) -> ChatCompletion:
        head = new_response_head("chatcmpl", served_model=self.served_model)
        builder = ChatBuilder(num_choices=len(accepted.streams), token_bytes=self.engine.token_bytes)
        ids = ReturnedIds(accepted)
        await read_to_the_end(accepted.streams, ids.beside(builder.add))
        style = _call_style(accepted)
        return ids.into(builder.build(head, choices_per_prompt=accepted.choices_per_prompt, call_style=style))


def chat_handler(
    engine: Engine, *, settings: ServerSettings, served_models: Sequence[str]
) -> GenerationHandler[ChatBody]:
    """Return what answers conversations."""
    return GenerationHandler(_ChatEndpoint, ChatBody, engine=engine, settings=settings, served_models=served_models)


def chat_routes(engine: Engine, *, settings: ServerSettings, served_models: Sequence[str]) -> list[HTTPRouteHandler]:
    """Return the handlers of `/v1/chat/completions`."""
    handler = chat_handler(engine, settings=settings, served_models=served_models)

    @post(
        "/v1/chat/completions",
        status_code=200,
        summary="Answer a conversation",
        description=NEGOTIATED_RESPONSE,
        operation_class=operation_with_body(ChatBody, events=_EVENTS),
        responses=error_responses(_ERRORS),
        exception_handlers=exception_handlers(params=PARAMS),
    )
    async def create_chat_completion(request: Request[Any, Any, Any]) -> Response[ChatCompletion]:
        return await handler.respond(request)

    @post(
        ["/v1/chat/completions/render", "/apply-template"],
        status_code=200,
        summary=RENDERING,
        operation_class=operation_with_body(ChatBody),
        responses=error_responses(_ERRORS),
        exception_handlers=exception_handlers(params=PARAMS),
    )
    async def render_chat_completion(request: Request[Any, Any, Any]) -> RenderedPrompt:
        [rendered] = await handler.render(request)
        return rendered

    return [create_chat_completion, render_chat_completion]


def _call_style(accepted: AcceptedRequest[ChatBody]) -> CallStyle:
    """Return how calls are told: as the client asked, and with the reason `stop` if it named the tool."""
    is_older = bool(accepted.body.functions)
    if any(isinstance(each.prompt, ChatPrompt) and each.prompt.tool_name is not None for each in accepted.requests):
        return CallStyle("stop", is_older)
    return CallStyle("function_call" if is_older else "tool_calls", is_older)
