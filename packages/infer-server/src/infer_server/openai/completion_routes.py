"""`POST /v1/completions`: from a request's bytes to its answer. Owns a request's life and releases it in the end.

```
read -> decode -> check -> submit -> stream, or wait for the whole
                             |              |
                  refused: 4xx, 503     done, failed or client gone: abort what is left
```
"""

from collections.abc import Callable
from typing import Any

import msgspec
from litestar import Request, Response, post
from litestar.handlers import HTTPRouteHandler

from infer_engine.protocol import Engine, RequestStream
from infer_server.http.bodies import ClientDisconnectedError, decode_body, read_body
from infer_server.http.disconnects import unless_disconnected
from infer_server.http.sse import EventStreamResponse, named_event, names_event_stream, plain_event
from infer_server.openai.completion_answers import completion_events, whole_completion
from infer_server.openai.completion_body import CompletionBody, generate_requests
from infer_server.openai.completion_replies import Completion, CompletionReplies
from infer_server.openapi import error_responses, operation_with_body
from infer_server.settings import ServerSettings, SseEventNames

_CLIENT_CLOSED_REQUEST = 499  # nginx's word for it; nobody is there to read it

_ERRORS = {
    400: "Not JSON, a value of the wrong type, a missing field, an empty prompt.",
    413: "The body is too large.",
    422: "A value out of range, an unknown or unsupported field, a model that is not served, a context too long.",
    500: "The request failed.",
    503: "The queue is full, or the server is shutting down; `Retry-After` says when to try again.",
}


def completion_routes(engine: Engine, *, settings: ServerSettings, served_model: str) -> list[HTTPRouteHandler]:
    """Return the handlers of `/v1/completions`."""

    @post(
        "/v1/completions",
        status_code=200,
        summary="Continue a prompt",
        description="Answers with one object, or with server-sent events where `stream` is true or `stream` is left "
        "out and `Accept` names `text/event-stream`: one event per token, one at the end of each choice, `[DONE]`.",
        operation_class=operation_with_body(CompletionBody),
        responses=error_responses(_ERRORS),
    )
    async def create_completion(request: Request[Any, Any, Any]) -> Response[Completion]:
        try:
            return await _answer(request, engine, settings=settings, served_model=served_model)
        except ClientDisconnectedError:
            return Response(b"", status_code=_CLIENT_CLOSED_REQUEST)  # type: ignore[arg-type]  # never sent

    return [create_completion]


async def _answer(
    request: Request[Any, Any, Any], engine: Engine, *, settings: ServerSettings, served_model: str
) -> Response[Any]:
    accepts_events = names_event_stream(request.headers.get("accept", ""))
    body = decode_body(await read_body(request, settings.max_body_bytes), CompletionBody)
    streaming = accepts_events if body.stream is None else body.stream
    requests = generate_requests(body, served_model=served_model, streaming=streaming)
    replies = CompletionReplies(model=served_model)
    streams = await engine.submit(requests)
    if streaming:
        total = body.stream_options is not None and body.stream_options.include_usage
        frame = _framing(settings.sse_event_names, accepts_events)
        return EventStreamResponse(
            completion_events(streams, replies, frame=frame, usage="and_total" if total else "per_choice"),
            release=lambda: _abort(streams),
            frame=frame,
            ping_interval_s=settings.sse_ping_interval,
        )
    try:
        return Response(await unless_disconnected(whole_completion(streams, replies), request.receive))
    finally:
        _abort(streams)


def _framing(names: SseEventNames, accepts_events: bool) -> Callable[[str, msgspec.Struct], bytes]:  # noqa: FBT001 - a fact about the client, not a switch
    named = names == "always" or (names == "negotiated" and accepts_events)
    return named_event if named else plain_event


def _abort(streams: list[RequestStream]) -> None:
    """Give back what is still running; a no-op for what has ended."""
    for stream in streams:
        stream.abort()
