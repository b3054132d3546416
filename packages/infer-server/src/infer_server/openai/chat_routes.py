"""`POST /v1/chat/completions`. Knows what a chat is made of; leaves a request's life to `generation`."""

from typing import Any

from litestar import Request, Response, post
from litestar.handlers import HTTPRouteHandler

from infer_engine.protocol import Engine, GenerateRequest
from infer_server.http.error_handlers import exception_handlers
from infer_server.http.sse import plain_event
from infer_server.openai.answers import Frame
from infer_server.openai.chat_body import ChatBody, chat_request
from infer_server.openai.chat_replies import ChatChunks, ChatCompletion, WholeChat
from infer_server.openai.generation import Accepted, Generation
from infer_server.openai.reply_heads import ReplyHead, new_head
from infer_server.openapi import error_responses, operation_with_body
from infer_server.settings import ServerSettings

_ERRORS = {
    400: "Not JSON, a value that is wrong, a field that is unknown or not supported, a context too long, a model "
    "without a chat template.",
    404: "The model is not served.",
    413: "The body is too large.",
    500: "The request failed.",
    503: "The queue is full, or the server is shutting down; `Retry-After` says when to try again.",
}

_EVENTS = (
    "`chat.completion.chunk` objects, in events without names: for each choice one with the role, one per token and "
    "one with `finish_reason`; then `[DONE]`."
)


def chat_routes(engine: Engine, *, settings: ServerSettings, served_model: str) -> list[HTTPRouteHandler]:
    """Return the handlers of `/v1/chat/completions`."""
    generation = Generation(_Chats(engine, served_model=served_model), ChatBody, engine=engine, settings=settings)

    @post(
        "/v1/chat/completions",
        status_code=200,
        summary="Answer a conversation",
        description="Answers with one object, or with server-sent events where `stream` is true or `stream` is left "
        "out and `Accept` names `text/event-stream`.",
        operation_class=operation_with_body(ChatBody, events=_EVENTS),
        responses=error_responses(_ERRORS),
        exception_handlers=exception_handlers(params={"prompt": "messages"}),
    )
    async def create_chat_completion(request: Request[Any, Any, Any]) -> Response[ChatCompletion]:
        return await generation.answer(request)

    return [create_chat_completion]


class _Chats:
    """The kind of generation that answers conversations."""

    def __init__(self, engine: Engine, *, served_model: str) -> None:
        self._engine = engine
        self._served_model = served_model

    def requests(self, body: ChatBody) -> list[GenerateRequest]:
        return [chat_request(body, served_model=self._served_model)]

    def frame(self, *, accepts_events: bool) -> Frame:  # noqa: ARG002 - nobody gets names
        return plain_event

    async def chunks(self, _: Accepted[ChatBody]) -> ChatChunks:
        return ChatChunks(self._head(), token_bytes=self._engine.token_bytes)

    async def whole(self, accepted: Accepted[ChatBody]) -> WholeChat:
        return WholeChat(self._head(), num_choices=len(accepted.streams), token_bytes=self._engine.token_bytes)

    def _head(self) -> ReplyHead:
        return new_head("chatcmpl", served_model=self._served_model)
