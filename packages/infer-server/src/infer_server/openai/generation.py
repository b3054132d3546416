"""Handles a request for generated text, from its body to the end of its response; aborts it if the client leaves.

```
read -> decode -> check -> submit -> stream, or wait for the whole response
                             |              |
                  refused: 4xx, 503     done, failed or client disconnected: abort the rest
```
"""

from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar

import msgspec
from litestar import Request, Response
from msgspec import structs

from infer_engine.protocol import Engine, GenerateRequest, InvalidRequestError, RequestStream
from infer_server.http.authentication import tenant
from infer_server.http.bodies import decode_body, read_body
from infer_server.http.disconnects import unless_disconnected
from infer_server.http.sse import EventEncoder, EventStreamResponse, accepts_event_stream
from infer_server.openai.builders import ChunkBuilder, ResponseBuilder, complete_response, stream_events
from infer_server.openai.generation_fields import GenerationFields, check_stream_options
from infer_server.openai.structured_outputs import refusal_of
from infer_server.operations.access_log import log_prompts, record_generation
from infer_server.settings import ServerSettings

B = TypeVar("B", bound=GenerationFields)
B_co = TypeVar("B_co", bound=GenerationFields, covariant=True)
B_contra = TypeVar("B_contra", bound=GenerationFields, contravariant=True)
R = TypeVar("R", bound=msgspec.Struct)
R_co = TypeVar("R_co", bound=msgspec.Struct, covariant=True)

# What the OpenAPI document says of every endpoint that generates text.
RESPONSE_DESCRIPTION = (
    "Answers with one object, or with server-sent events where `stream` is true or `stream` is left out and `Accept` "
    "names `text/event-stream`."
)
COMMON_ERRORS = {
    413: "The body is too large.",
    500: "The request failed.",
    503: "The queue is full, or the server is shutting down; `Retry-After` says when to try again.",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class AcceptedRequest(Generic[B_co]):
    """A request that the engine has accepted. Its handler must abort it at the end.

    Attributes:
        body: what the client sent.
        requests: the engine's requests, one per prompt.
        streams: one for each choice, request by request.
    """

    body: B_co
    requests: list[GenerateRequest]
    streams: list[RequestStream]

    @property
    def choices_per_prompt(self) -> int:
        """The number of streams that answer one prompt."""
        return len(self.streams) // len(self.requests)

    def abort(self) -> None:
        """Abort the streams that have not ended."""
        for stream in self.streams:
            stream.abort()


class Endpoint(Protocol[B_contra, R_co]):
    """What differs between the endpoints that generate text."""

    def requests(self, body: B_contra) -> list[GenerateRequest]:
        """Return the engine's requests for `body`.

        Raises:
            ApiError: a value in it is not accepted.
        """

    def event_encoder(self, *, accepts_events: bool) -> EventEncoder:
        """Return what encodes events; `accepts_events` says whether the `Accept` header named event streams."""

    async def chunk_builder(self, accepted: AcceptedRequest[B_contra]) -> ChunkBuilder:
        """Return the builder of a stream's chunks."""

    async def response_builder(self, accepted: AcceptedRequest[B_contra]) -> ResponseBuilder[R_co]:
        """Return the builder of a response that does not stream."""


class GenerationHandler(Generic[B, R]):
    """Handles the requests of one endpoint."""

    def __init__(self, endpoint: Endpoint[B, R], body: type[B], *, engine: Engine, settings: ServerSettings) -> None:
        """Bodies are decoded as `body`."""
        self._endpoint = endpoint
        self._body = body
        self._engine = engine
        self._settings = settings

    async def respond(self, request: Request[Any, Any, Any]) -> Response[R]:
        """Return the response to `request`, which may be a stream.

        Raises:
            ApiError: the request is refused, or failed before its first byte was sent.
            RequestRefusedError: the engine refuses it.
            ClientDisconnectedError: the client disconnected.
        """
        body = decode_body(await read_body(request, self._settings.max_body_bytes), self._body)
        accepts_events = accepts_event_stream(request.headers.get("accept", ""))
        streaming = accepts_events if body.stream is None else body.stream
        requests = _of_tenant(self._endpoint.requests(body), tenant(request.scope))
        check_stream_options(body.stream_options, streaming=streaming)
        log_prompts(request.scope, requests)
        accepted = AcceptedRequest(body=body, requests=requests, streams=await self._submit(requests, body))
        record_generation(request.scope, accepted.streams)
        if streaming:
            return await self._stream(accepted, encode=self._endpoint.event_encoder(accepts_events=accepts_events))
        try:
            return Response(await unless_disconnected(self._complete(accepted), request.receive))
        finally:
            accepted.abort()

    async def _submit(self, requests: list[GenerateRequest], body: B) -> list[RequestStream]:
        try:
            return await self._engine.submit(requests)
        except InvalidRequestError as error:
            raise refusal_of(error, body=body) or error from None

    async def _stream(self, accepted: AcceptedRequest[B], *, encode: EventEncoder) -> Response[R]:
        try:
            chunks = await self._endpoint.chunk_builder(accepted)
        except BaseException:
            accepted.abort()
            raise
        options = accepted.body.stream_options
        events = stream_events(
            accepted.streams,
            chunks,
            encode=encode,
            choices_per_prompt=accepted.choices_per_prompt,
            include_usage=bool(options and options.include_usage),
        )
        ping_interval_s = self._settings.sse_ping_interval
        return EventStreamResponse(events, release=accepted.abort, encode=encode, ping_interval_s=ping_interval_s)

    async def _complete(self, accepted: AcceptedRequest[B]) -> R:
        builder = await self._endpoint.response_builder(accepted)
        return await complete_response(accepted.streams, builder, choices_per_prompt=accepted.choices_per_prompt)


def _of_tenant(requests: list[GenerateRequest], tenant: str | None) -> list[GenerateRequest]:
    return requests if tenant is None else [structs.replace(request, tenant=tenant) for request in requests]
