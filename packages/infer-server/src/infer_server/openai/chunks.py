"""The events of streams that consist of chunks of the response, as those of completions and of chats do."""

from collections.abc import AsyncGenerator, Iterable, Sequence
from contextlib import aclosing
from typing import Protocol, TypeVar

import msgspec
from msgspec import structs

from infer_engine.protocol import AnswerDelta, FinishReason, RequestStream, StepOutput
from infer_server.api.failures import raise_if_failed
from infer_server.api.handler import AcceptedRequest
from infer_server.api.outputs import merge_outputs
from infer_server.errors import ApiError
from infer_server.http.sse import DONE, EventEncoder, EventStream, plain_event
from infer_server.openai.generation_fields import GenerationFields
from infer_server.openai.returned_ids import ChunksWithIds
from infer_server.openai.usage import Usage, usage_of

G = TypeVar("G", bound=GenerationFields)


class ChunkBuilder(Protocol):
    """Builds the chunks of a stream, each of which is one event. `index` is that of a choice."""

    def start(self, index: int, first: StepOutput) -> msgspec.Struct | None:
        """Return the chunk before the first token of a choice, whose first output is `first`; None if there is none."""

    def token(self, index: int, token: StepOutput) -> Iterable[msgspec.Struct]:
        """Return the chunks of one token, which is all that the output `token` has."""

    def finish(self, index: int, last: StepOutput, *, text: str) -> msgspec.Struct:
        """Return the chunk that ends a choice after its `last` output; `text` is what no token's chunk had.

        Raises:
            ApiError: the API has no finish reason for this end.
        """

    def usage(self, usage: Usage) -> msgspec.Struct:
        """Return the chunk with the usage of the whole request."""


class ContinuousUsage:
    """Adds the usage of their choice so far to the chunks of another builder, as vLLM's clients ask for it."""

    def __init__(self, chunks: ChunkBuilder) -> None:
        """Add to what `chunks` builds; each of its chunks has a field `usage`."""
        self._chunks = chunks
        self.usage = chunks.usage

    def start(self, index: int, first: StepOutput) -> msgspec.Struct | None:
        """Return the chunk before the first token of a choice."""
        chunk = self._chunks.start(index, first)
        return None if chunk is None else _with_usage(chunk, first.num_prompt_tokens, 0)

    def token(self, index: int, token: StepOutput) -> list[msgspec.Struct]:
        """Return the chunks of one token."""
        counts = token.num_prompt_tokens, token.num_completion_tokens
        return [_with_usage(chunk, *counts) for chunk in self._chunks.token(index, token)]

    def finish(self, index: int, last: StepOutput, *, text: str) -> msgspec.Struct:
        """Return the chunk that ends a choice."""
        chunk = self._chunks.finish(index, last, text=text)
        return structs.replace(chunk, usage=usage_of([last], choices_per_prompt=1))


def event_stream(accepted: AcceptedRequest[G], chunks: ChunkBuilder, *, encode: EventEncoder) -> EventStream:
    """Return the stream of the chunks of an accepted request, with the usage that its body asks for."""
    options = accepted.body.stream_options
    include_usage = bool(options and options.include_usage)
    if options and include_usage and options.continuous_usage_stats:
        chunks = ContinuousUsage(chunks)
    if accepted.body.return_token_ids:
        chunks = ChunksWithIds(chunks, accepted.streams)
    events = stream_events(
        accepted.streams,
        chunks,
        encode=encode,
        choices_per_prompt=accepted.choices_per_prompt,
        include_usage=include_usage,
    )
    return EventStream(events=events, error_event=lambda reply: encode("error", reply) + DONE)


async def stream_events(
    streams: Sequence[RequestStream],
    chunks: ChunkBuilder,
    *,
    encode: EventEncoder,
    choices_per_prompt: int,
    include_usage: bool,
) -> AsyncGenerator[bytes, None]:
    """Yield the bytes of a stream's events: one write per output, events per token, one more at a choice's end.

    `include_usage` adds a chunk with the usage of the whole request. A failure of any choice ends the stream with an
    error event. The last event is always `data: [DONE]`.
    """
    last_outputs: dict[int, StepOutput] = {}
    started: set[int] = set()
    try:
        async with aclosing(merge_outputs(streams)) as outputs:
            async for index, output in outputs:
                events: list[bytes] = []
                if index not in started and (output.token_ids or output.finish_reason is FinishReason.LENGTH):
                    started.add(index)
                    start = chunks.start(index, output)
                    events += [] if start is None else [encode("token", start)]
                for token in _tokens(output):
                    events += [encode("token", chunk) for chunk in chunks.token(index, token)]
                if output.finished and output.error is None:
                    last_outputs[index] = output
                    rest = "" if output.token_ids else output.text
                    events.append(encode("done", chunks.finish(index, output, text=rest)))
                if events:
                    yield b"".join(events)
                raise_if_failed(output)
    except ApiError as error:
        yield encode("error", error.reply) + DONE
        return
    if include_usage:
        total = usage_of([last_outputs[i] for i in range(len(streams))], choices_per_prompt=choices_per_prompt)
        yield plain_event("", chunks.usage(total)) + DONE
    else:
        yield DONE


def _tokens(output: StepOutput) -> list[StepOutput]:
    """Return an output for each token of a step. The last one has the step's text."""
    count = len(output.token_ids)
    if count < 2:
        return [output] if count else []
    made = output.num_completion_tokens - count
    tokens = [
        structs.replace(
            output,
            token_ids=[token_id],
            num_completion_tokens=made + number,
            logprobs=output.logprobs[number - 1 : number] if output.logprobs else None,
        )
        for number, token_id in enumerate(output.token_ids, 1)
    ]
    no_deltas: list[AnswerDelta] | None = None if output.deltas is None else []
    return [*(structs.replace(token, text="", deltas=no_deltas) for token in tokens[:-1]), tokens[-1]]


def _with_usage(chunk: msgspec.Struct, prompt_tokens: int, completion_tokens: int) -> msgspec.Struct:
    total = prompt_tokens + completion_tokens
    usage = Usage(prompt_tokens=prompt_tokens, completion_tokens=completion_tokens, total_tokens=total)
    return structs.replace(chunk, usage=usage)
