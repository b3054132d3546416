"""The life of a request for generated text, whatever its body and its answer look like. Releases it in the end.

```
read -> decode -> check -> submit -> stream, or wait for the whole
                             |              |
                  refused: 4xx, 503     done, failed or client gone: abort what is left
```
"""

from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar

import msgspec
from litestar import Request, Response
from msgspec import structs

from infer_engine.protocol import Engine, GenerateRequest, RequestStream
from infer_server.http.authentication import tenant
from infer_server.http.bodies import decode_body, read_body
from infer_server.http.disconnects import unless_disconnected
from infer_server.http.sse import EventStreamResponse, names_event_stream
from infer_server.openai.answers import Chunks, Frame, Whole, answer_events, whole_answer
from infer_server.openai.sampling_fields import GenerationFields, check_stream_options
from infer_server.operations.access_log import log_prompts, note_generation
from infer_server.settings import ServerSettings

B = TypeVar("B", bound=GenerationFields)
B_co = TypeVar("B_co", bound=GenerationFields, covariant=True)
B_contra = TypeVar("B_contra", bound=GenerationFields, contravariant=True)
A = TypeVar("A", bound=msgspec.Struct)
A_co = TypeVar("A_co", bound=msgspec.Struct, covariant=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class Accepted(Generic[B_co]):
    """A request that the engine took: whoever holds it aborts it in the end.

    Attributes:
        body: what the client sent.
        requests: what was asked of the engine.
        streams: one for each choice, request by request.
    """

    body: B_co
    requests: list[GenerateRequest]
    streams: list[RequestStream]

    @property
    def choices_per_prompt(self) -> int:
        """As many streams answer one prompt."""
        return len(self.streams) // len(self.requests)

    def abort(self) -> None:
        """Give back what is still running; a no-op for what has ended."""
        for stream in self.streams:
            stream.abort()


class Kind(Protocol[B_contra, A_co]):
    """One kind of generation: what its bodies ask, and how its answers look."""

    def requests(self, body: B_contra) -> list[GenerateRequest]:
        """Return what `body` asks of the engine.

        Raises:
            ApiError: it asks for what it cannot have.
        """

    def frame(self, *, accepts_events: bool) -> Frame:
        """Return how events are written for a client that named, or did not, event streams in its `Accept` header."""

    async def chunks(self, accepted: Accepted[B_contra]) -> Chunks:
        """Return what makes the chunks of the answer."""

    async def whole(self, accepted: Accepted[B_contra]) -> Whole[A_co]:
        """Return what gathers the answer."""


class Generation(Generic[B, A]):
    """Answers requests of one kind."""

    def __init__(self, kind: Kind[B, A], body: type[B], *, engine: Engine, settings: ServerSettings) -> None:
        """`body` is what requests are decoded as."""
        self._kind = kind
        self._body = body
        self._engine = engine
        self._settings = settings

    async def answer(self, request: Request[Any, Any, Any]) -> Response[A]:
        """Return the answer to `request`, or the stream of it.

        Raises:
            ApiError: the request is refused, or failed before its first byte was sent.
            RequestRefusedError: the engine refuses it.
            ClientDisconnectedError: there is nobody to answer.
        """
        body = decode_body(await read_body(request, self._settings.max_body_bytes), self._body)
        accepts_events = names_event_stream(request.headers.get("accept", ""))
        streaming = accepts_events if body.stream is None else body.stream
        requests = _of_tenant(self._kind.requests(body), tenant(request.scope))
        check_stream_options(body.stream_options, streaming=streaming)
        log_prompts(request.scope, requests)
        accepted = Accepted(body=body, requests=requests, streams=await self._engine.submit(requests))
        note_generation(request.scope, accepted.streams)
        if streaming:
            return await self._stream(accepted, frame=self._kind.frame(accepts_events=accepts_events))
        try:
            return Response(await unless_disconnected(self._wait(accepted), request.receive))
        finally:
            accepted.abort()

    async def _stream(self, accepted: Accepted[B], *, frame: Frame) -> Response[A]:
        try:
            chunks = await self._kind.chunks(accepted)
        except BaseException:
            accepted.abort()
            raise
        options = accepted.body.stream_options
        events = answer_events(
            accepted.streams,
            chunks,
            frame=frame,
            choices_per_prompt=accepted.choices_per_prompt,
            total_usage=bool(options and options.include_usage),
        )
        ping_interval_s = self._settings.sse_ping_interval
        return EventStreamResponse(events, release=accepted.abort, frame=frame, ping_interval_s=ping_interval_s)

    async def _wait(self, accepted: Accepted[B]) -> A:
        whole = await self._kind.whole(accepted)
        return await whole_answer(accepted.streams, whole, choices_per_prompt=accepted.choices_per_prompt)


def _of_tenant(requests: list[GenerateRequest], tenant: str | None) -> list[GenerateRequest]:
    return requests if tenant is None else [structs.replace(request, tenant=tenant) for request in requests]
