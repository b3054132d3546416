"""Handles a request for generated text, from its body to the end of its response; aborts it if the client leaves.

```
read -> decode -> check -> submit -> stream, or wait for the whole response
                             |              |
                  refused: 4xx, 503     done, failed or client disconnected: abort the rest
```
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar

import msgspec
from litestar import Request, Response
from msgspec import structs

from infer_engine.protocol import Engine, GenerateRequest, InvalidRequestError, RequestStream, SamplingDefaults
from infer_server.errors import ApiError
from infer_server.http.authentication import tenant
from infer_server.http.bodies import decode_body, read_body
from infer_server.http.disconnects import unless_disconnected
from infer_server.http.sse import EventStream, EventStreamResponse, accepts_event_stream
from infer_server.observability.access_log import log_prompts, record_generation
from infer_server.settings import ServerSettings

B = TypeVar("B", bound=msgspec.Struct)
B_co = TypeVar("B_co", bound=msgspec.Struct, covariant=True)
B_contra = TypeVar("B_contra", bound=msgspec.Struct, contravariant=True)
R = TypeVar("R", bound=msgspec.Struct)
R_co = TypeVar("R_co", bound=msgspec.Struct, covariant=True)

# What the OpenAPI document says of every endpoint that generates text.
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

    def is_streaming(self, body: B_contra, *, accepts_events: bool) -> bool:
        """Return whether to answer with events; `accepts_events` says whether the `Accept` header names them.

        Raises:
            ApiError: `body` asks for what only the other kind of answer has.
        """

    def refusal(self, error: InvalidRequestError, body: B_contra) -> ApiError | None:
        """Return the reply if the engine refuses `body` with `error`; None for the usual reply."""

    async def events(self, accepted: AcceptedRequest[B_contra], *, accepts_events: bool) -> EventStream:
        """Return the events of the answer."""

    async def complete(self, accepted: AcceptedRequest[B_contra]) -> R_co:
        """Return the whole answer.

        Raises:
            ApiError: the request failed, or the engine aborted it.
        """


class GenerationHandler(Generic[B, R]):
    """Handles the requests of one endpoint."""

    def __init__(
        self, endpoints: Mapping[str, Endpoint[B, R]], body: type[B], *, engine: Engine, settings: ServerSettings
    ) -> None:
        """Bodies are decoded as `body`; `endpoints` has one for each name of the model, which its answers repeat."""
        self._endpoints = endpoints
        self._body = body
        self._engine = engine
        self._max_body_bytes = settings.max_body_bytes
        self._ping_interval_s = settings.sse_ping_interval

    async def respond(self, request: Request[Any, Any, Any]) -> Response[R]:
        """Return the response to `request`, which may be a stream.

        Raises:
            ApiError: the request is refused, or failed before its first byte was sent.
            RequestRefusedError: the engine refuses it.
            ClientDisconnectedError: the client disconnected.
        """
        body = decode_body(await read_body(request, self._max_body_bytes), self._body)
        accepts_events = accepts_event_stream(request.headers.get("accept", ""))
        named: str | None = body.model  # type: ignore[attr-defined]  # every body may name a model
        endpoint = self._endpoints[served_name(named, self._endpoints)]
        requests = _with_defaults(endpoint.requests(body), body, self._engine.info.sampling_defaults)
        requests = _of_tenant(requests, tenant(request.scope))
        streaming = endpoint.is_streaming(body, accepts_events=accepts_events)
        log_prompts(request.scope, requests)
        accepted = AcceptedRequest(body=body, requests=requests, streams=await self._submit(requests, body, endpoint))
        record_generation(request.scope, accepted.streams)
        if streaming:
            return await self._stream(accepted, endpoint, accepts_events=accepts_events)
        try:
            return Response(await unless_disconnected(endpoint.complete(accepted), request.receive))
        finally:
            accepted.abort()

    async def _submit(self, requests: list[GenerateRequest], body: B, endpoint: Endpoint[B, R]) -> list[RequestStream]:
        try:
            return await self._engine.submit(requests)
        except InvalidRequestError as error:
            raise endpoint.refusal(error, body) or error from None

    async def _stream(
        self, accepted: AcceptedRequest[B], endpoint: Endpoint[B, R], *, accepts_events: bool
    ) -> Response[R]:
        try:
            stream = await endpoint.events(accepted, accepts_events=accepts_events)
        except BaseException:
            accepted.abort()
            raise
        return EventStreamResponse(stream, release=accepted.abort, ping_interval_s=self._ping_interval_s)


def _with_defaults(
    requests: list[GenerateRequest], body: msgspec.Struct, defaults: SamplingDefaults
) -> list[GenerateRequest]:
    """Return `requests` with the model's sampling values where `body` has none of its own.

    A number of tokens that the model recommends is cut to what the context leaves.
    """
    if not defaults.given:
        return requests
    sent = {name: value for name in defaults.given if (value := getattr(body, name, None)) is not None}
    filled = []
    for request in requests:
        params = defaults.fill(request.params, leaving=sent)
        clips = request.clip_max_tokens or params.max_tokens != request.params.max_tokens
        filled.append(structs.replace(request, params=params, clip_max_tokens=clips))
    return filled


def _of_tenant(requests: list[GenerateRequest], tenant: str | None) -> list[GenerateRequest]:
    return requests if tenant is None else [structs.replace(request, tenant=tenant) for request in requests]


def served_name(model: str | None, served_models: Collection[str]) -> str:
    """Return the name of the served model that a body means: the one that it names, else the first."""
    return model if model is not None and model in served_models else next(iter(served_models))
