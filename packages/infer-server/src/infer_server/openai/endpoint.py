"""What `/v1/completions` and `/v1/chat/completions` share: chunks in a stream, or one object at the end."""

from abc import ABC, abstractmethod
from typing import Generic, TypeVar

import msgspec

from infer_engine.protocol import GenerateRequest, InvalidRequestError
from infer_server.api.handler import AcceptedRequest
from infer_server.errors import ApiError
from infer_server.http.sse import DONE, EventEncoder, EventStream
from infer_server.openai.chunks import ChunkBuilder, ContinuousUsage, ResponseBuilder, complete_response, stream_events
from infer_server.openai.generation_fields import GenerationFields, check_stream_options
from infer_server.openai.structured_outputs import refusal_of

B = TypeVar("B", bound=GenerationFields)
R = TypeVar("R", bound=msgspec.Struct)

RESPONSE_DESCRIPTION = (
    "Answers with one object, or with server-sent events where `stream` is true or `stream` is left out and `Accept` "
    "names `text/event-stream`."
)


class ChunkedEndpoint(ABC, Generic[B, R]):
    """An endpoint whose events are chunks of its response. Implements `infer_server.api.handler.Endpoint`."""

    @abstractmethod
    def requests(self, body: B) -> list[GenerateRequest]:
        """Return the engine's requests for `body`."""

    @abstractmethod
    def event_encoder(self, *, accepts_events: bool) -> EventEncoder:
        """Return what encodes events; `accepts_events` says whether the `Accept` header named event streams."""

    @abstractmethod
    async def chunk_builder(self, accepted: AcceptedRequest[B]) -> ChunkBuilder:
        """Return the builder of a stream's chunks."""

    @abstractmethod
    async def response_builder(self, accepted: AcceptedRequest[B]) -> ResponseBuilder[R]:
        """Return the builder of a response that does not stream."""

    def is_streaming(self, body: B, *, accepts_events: bool) -> bool:
        """Return what `stream` says or, if it is left out, the `Accept` header."""
        check_stream_options(body.stream_options)
        return accepts_events if body.stream is None else body.stream

    def refusal(self, error: InvalidRequestError, body: B) -> ApiError | None:
        """Return the error for structured output that the engine refuses, under the client's name for it."""
        return refusal_of(error, body=body)

    async def events(self, accepted: AcceptedRequest[B], *, accepts_events: bool) -> EventStream:
        """Return the chunks as events."""
        encode = self.event_encoder(accepts_events=accepts_events)
        options = accepted.body.stream_options
        include_usage = bool(options and options.include_usage)
        chunks = await self.chunk_builder(accepted)
        events = stream_events(
            accepted.streams,
            ContinuousUsage(chunks) if options and include_usage and options.continuous_usage_stats else chunks,
            encode=encode,
            choices_per_prompt=accepted.choices_per_prompt,
            include_usage=include_usage,
        )
        return EventStream(events=events, error_event=lambda reply: encode("error", reply) + DONE)

    async def complete(self, accepted: AcceptedRequest[B]) -> R:
        """Return the response, after the last output of every choice."""
        builder = await self.response_builder(accepted)
        return await complete_response(accepted.streams, builder, choices_per_prompt=accepted.choices_per_prompt)
