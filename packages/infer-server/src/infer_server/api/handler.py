"""Handles a request for generated text, from its body to the end of its response; aborts it if the client leaves.

```
read -> decode -> check -> submit -> stream, or wait for the whole response
                             |              |
                  refused: 4xx, 503     done, failed or client disconnected: abort the rest
```
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Generic, TypeVar

import msgspec
from litestar import Request, Response
from msgspec import structs

from infer_engine.protocol import Engine, GenerateRequest, InvalidRequestError, RequestStream
from infer_server.api.foreign_fields import ForeignFields, decode_fields
from infer_server.api.validation import refused_format
from infer_server.http.authentication import tenant
from infer_server.http.bodies import read_body
from infer_server.http.disconnects import unless_disconnected
from infer_server.http.sse import EventStream, EventStreamResponse, accepts_event_stream, accepts_only_event_stream
from infer_server.observability.access_log import log_prompts, record_generation
from infer_server.settings import ServerSettings

B = TypeVar("B", bound=ForeignFields)

# What the OpenAPI document says of every endpoint that generates text.
COMMON_ERRORS = {
    413: "The body is too large.",
    500: "The request failed.",
    503: "The queue is full, or the server is shutting down; `Retry-After` says when to try again.",
}
RENDERING = "Show the prompt that a request would have, without an answer"
NEGOTIATED_RESPONSE = (
    "Answers with one object, or with server-sent events where `stream` is true or `stream` is left out and `Accept` "
    "names `text/event-stream` and takes no JSON."
)


@dataclass(frozen=True, slots=True, kw_only=True)
class AcceptedRequest(Generic[B]):
    """A request that the engine has accepted. Its handler must abort it at the end.

    Attributes:
        body: what the client sent.
        requests: the engine's requests, one per prompt.
        streams: one for each choice, request by request.
        accepts_events: whether the client's `Accept` header names event streams.
    """

    body: B
    requests: list[GenerateRequest]
    streams: list[RequestStream]
    accepts_events: bool

    @property
    def choices_per_prompt(self) -> int:
        """The number of streams that answer one prompt."""
        return len(self.streams) // len(self.requests)

    def abort(self) -> None:
        """Abort the streams that have not ended."""
        for stream in self.streams:
            stream.abort()


class Endpoint(ABC, Generic[B]):
    """An API that generates text, under one name of the model; each API is a subclass.

    Attributes:
        negotiates: whether the `Accept` header decides about a body that leaves `stream` out.
        engine: what generates.
        served_model: the name that the answers repeat.
        settings: settings of the server.
    """

    negotiates: ClassVar[bool] = True

    def __init__(self, engine: Engine, *, served_model: str, settings: ServerSettings) -> None:
        """Serve `engine` under the name `served_model`."""
        self.engine = engine
        self.served_model = served_model
        self.settings = settings

    def resolved(self, body: Any, *, owner: str | None) -> B:  # noqa: ARG002 - those that read it override this
        """Return a decoded `body` of the tenant `owner` with what it refers to; most bodies refer to nothing.

        Raises:
            ApiError: what it refers to is not there.
        """
        found: B = body
        return found

    @abstractmethod
    def requests(self, body: B) -> list[GenerateRequest]:
        """Return the engine's requests for `body`.

        Raises:
            ApiError: a value in it is not accepted.
        """

    @abstractmethod
    def format_place(self, body: B) -> tuple[str, str]:
        """Return where `body` says what the text looks like, and the name of that field, for the engine's refusals."""

    @abstractmethod
    async def events(self, accepted: AcceptedRequest[B]) -> EventStream:
        """Return the events of the answer."""

    @abstractmethod
    async def complete(self, accepted: AcceptedRequest[B]) -> msgspec.Struct | dict[str, Any]:
        """Return the whole answer.

        Raises:
            ApiError: 500, the request failed; 503, the engine aborted it.
        """


class RenderedPrompt(msgspec.Struct, frozen=True, kw_only=True):
    """The prompt of a request as the model would get it: its text, special tokens included, and its tokens."""

    prompt: str
    token_ids: list[int]


class GenerationHandler(Generic[B]):
    """Handles the requests of one API."""

    def __init__(
        self,
        endpoint: Callable[..., Endpoint[B]],
        body: type[ForeignFields],
        *,
        engine: Engine,
        settings: ServerSettings,
        served_models: Sequence[str],
    ) -> None:
        """Bodies are decoded as `body`; `endpoint` answers them under each of the names `served_models`."""
        self._endpoints = {name: endpoint(engine, served_model=name, settings=settings) for name in served_models}
        self._body = body
        self._engine = engine
        self._settings = settings

    async def respond(self, request: Request[Any, Any, Any]) -> Response[Any]:
        """Return the response to `request`, which may be a stream.

        Raises:
            ApiError: the request is refused, or failed before its first byte was sent.
            RequestRefusedError: the engine refuses it.
            ClientDisconnectedError: the client disconnected.
        """
        return await self.respond_to(await read_body(request, self._settings.max_body_bytes), request)

    async def respond_to(self, raw: bytes, request: Request[Any, Any, Any]) -> Response[Any]:
        """Return the response to `request`, whose body is `raw`; see `respond`."""
        body, endpoint = self._decoded(raw, request)
        accept = request.headers.get("accept", "")
        requests = self._filled(endpoint.requests(body), body, owner=tenant(request.scope))
        log_prompts(request.scope, requests)
        streams = await self._submit(requests, body, endpoint)
        names_events = accepts_event_stream(accept)
        accepted = AcceptedRequest(body=body, requests=requests, streams=streams, accepts_events=names_events)
        record_generation(request.scope, streams)
        wanted: bool | None = body.stream  # type: ignore[attr-defined]  # every body may ask for a stream
        if endpoint.negotiates and accepts_only_event_stream(accept) if wanted is None else wanted:
            return await self._stream(accepted, endpoint)
        try:
            return Response(await unless_disconnected(endpoint.complete(accepted), request.receive))
        finally:
            accepted.abort()

    async def render(self, request: Request[Any, Any, Any]) -> list[RenderedPrompt]:
        """Return the prompts of `request`, of which nothing is generated.

        Raises:
            ApiError: a value is not accepted.
            RequestRefusedError: the engine refuses a prompt.
            ClientDisconnectedError: the client disconnected.
        """
        body, endpoint = self._decoded(await read_body(request, self._settings.max_body_bytes), request)
        requests = endpoint.requests(body)
        return [await unless_disconnected(self._render(each), request.receive) for each in requests]

    def _decoded(self, raw: bytes, request: Request[Any, Any, Any]) -> tuple[B, Endpoint[B]]:
        body = decode_fields(raw, self._body)
        named: str | None = body.model  # type: ignore[attr-defined]  # every body may name a model
        endpoint = self._endpoints[served_name(named, self._endpoints)]
        return endpoint.resolved(body, owner=tenant(request.scope)), endpoint

    async def _render(self, request: GenerateRequest) -> RenderedPrompt:
        token_ids = request.prompt
        if not isinstance(token_ids, list):
            token_ids = await self._engine.tokenize(token_ids, add_special_tokens=request.add_special_tokens)
        return RenderedPrompt(prompt=await self._engine.detokenize(token_ids), token_ids=token_ids)

    def _filled(self, requests: list[GenerateRequest], body: B, *, owner: str | None) -> list[GenerateRequest]:
        """Return `requests` of the tenant `owner`, with the model's sampling values where `body` has none of its own.

        A number of tokens that the model recommends is cut to what the context leaves.
        """
        defaults = self._engine.info.sampling_defaults
        if not defaults.given and owner is None:
            return requests
        sent = {name: value for name in defaults.given if (value := getattr(body, name, None)) is not None}
        filled = []
        for request in requests:
            params = defaults.fill(request.params, leaving=sent)
            clips = request.clip_max_tokens or params.max_tokens != request.params.max_tokens
            filled.append(structs.replace(request, params=params, clip_max_tokens=clips, tenant=owner))
        return filled

    async def _submit(self, requests: list[GenerateRequest], body: B, endpoint: Endpoint[B]) -> list[RequestStream]:
        try:
            return await self._engine.submit(requests)
        except InvalidRequestError as error:
            if error.param != "structured_outputs":
                raise
            path, param = endpoint.format_place(body)
            raise refused_format(error.message, path=path, param=param, code=error.code) from None

    async def _stream(self, accepted: AcceptedRequest[B], endpoint: Endpoint[B]) -> Response[Any]:
        try:
            stream = await endpoint.events(accepted)
        except BaseException:
            accepted.abort()
            raise
        return EventStreamResponse(stream, release=accepted.abort, ping_interval_s=self._settings.sse_ping_interval)


def served_name(model: str | None, served_models: Collection[str]) -> str:
    """Return the name of the served model that a body means: the one that it names, else the first."""
    return model if model is not None and model in served_models else next(iter(served_models))
