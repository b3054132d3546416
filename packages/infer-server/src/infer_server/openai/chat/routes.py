"""`POST /v1/chat/completions`."""

from collections.abc import Sequence
from typing import Any

from litestar import Request, Response, post
from litestar.handlers import HTTPRouteHandler

from infer_engine.protocol import ChatPrompt, Engine, GenerateRequest
from infer_server.api.handler import COMMON_ERRORS, AcceptedRequest, GenerationHandler
from infer_server.http.error_handlers import exception_handlers
from infer_server.http.sse import EventEncoder, plain_event
from infer_server.openai.chat.request import ChatBody, chat_request
from infer_server.openai.chat.response import ChatChunkBuilder, ChatCompletion, ChatResponseBuilder
from infer_server.openai.endpoint import RESPONSE_DESCRIPTION, ChunkedEndpoint
from infer_server.openai.response_head import ResponseHead, new_response_head
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


def chat_routes(engine: Engine, *, settings: ServerSettings, served_models: Sequence[str]) -> list[HTTPRouteHandler]:
    """Return the handlers of `/v1/chat/completions`."""
    endpoints = {name: _ChatEndpoint(engine, served_model=name) for name in served_models}
    handler = GenerationHandler(endpoints, ChatBody, engine=engine, settings=settings)

    @post(
        "/v1/chat/completions",
        status_code=200,
        summary="Answer a conversation",
        description=RESPONSE_DESCRIPTION,
        operation_class=operation_with_body(ChatBody, events=_EVENTS),
        responses=error_responses(_ERRORS),
        exception_handlers=exception_handlers(params={"prompt": "messages"}),
    )
    async def create_chat_completion(request: Request[Any, Any, Any]) -> Response[ChatCompletion]:
        return await handler.respond(request)

    return [create_chat_completion]


class _ChatEndpoint(ChunkedEndpoint[ChatBody, ChatCompletion]):
    """Makes requests of conversations, and chat completions of the outputs."""

    def __init__(self, engine: Engine, *, served_model: str) -> None:
        self._engine = engine
        self._served_model = served_model

    def requests(self, body: ChatBody) -> list[GenerateRequest]:
        return [chat_request(body, served_model=self._served_model)]

    def event_encoder(self, *, accepts_events: bool) -> EventEncoder:  # noqa: ARG002 - chat events never have names
        return plain_event

    async def chunk_builder(self, accepted: AcceptedRequest[ChatBody]) -> ChatChunkBuilder:
        return ChatChunkBuilder(
            self._head(), token_bytes=self._engine.token_bytes, names_tool=_names_tool(accepted.requests)
        )

    async def response_builder(self, accepted: AcceptedRequest[ChatBody]) -> ChatResponseBuilder:
        return ChatResponseBuilder(
            self._head(),
            num_choices=len(accepted.streams),
            token_bytes=self._engine.token_bytes,
            names_tool=_names_tool(accepted.requests),
        )

    def _head(self) -> ResponseHead:
        return new_response_head("chatcmpl", served_model=self._served_model)


def _names_tool(requests: list[GenerateRequest]) -> bool:
    return any(isinstance(each.prompt, ChatPrompt) and each.prompt.tool_name is not None for each in requests)
