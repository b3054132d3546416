"""From the engine's outputs to a response: a stream of events, or one object at the end.

What events and objects look like is up to a `ChunkBuilder` or a `ResponseBuilder` of the endpoint.
"""

from collections.abc import AsyncGenerator, Iterable, Iterator, Sequence
from contextlib import aclosing
from typing import Protocol, TypeVar

import msgspec

from infer_engine.protocol import AnswerDelta, FinishReason, RequestStream, StepOutput, TokenLogprob
from infer_server.api.failures import raise_if_failed, raise_if_unfinished
from infer_server.api.outputs import merge_outputs
from infer_server.errors import ApiError
from infer_server.http.sse import DONE, EventEncoder, plain_event
from infer_server.openai.usage import Usage, usage_of

R_co = TypeVar("R_co", bound=msgspec.Struct, covariant=True)


class GeneratedToken(msgspec.Struct, frozen=True, gc=False):
    """One token of a step; `text` is empty while the text that ends with it is not certain.

    `deltas` are what it adds to the parts of a conversation's answer, where the engine takes answers apart.
    """

    token_id: int
    text: str
    logprob: TokenLogprob | None
    deltas: Sequence[AnswerDelta] | None = None


class ChunkBuilder(Protocol):
    """Builds the chunks of a stream, each of which is one event. `index` is that of a choice."""

    def start(self, index: int, first: StepOutput) -> msgspec.Struct | None:
        """Return the chunk before the first token of a choice, whose first output is `first`; None if there is none."""

    def token(self, index: int, token: GeneratedToken) -> Iterable[msgspec.Struct]:
        """Return the chunks of one token."""

    def finish(self, index: int, last: StepOutput, *, text: str) -> msgspec.Struct:
        """Return the chunk that ends a choice after its `last` output; `text` is what no token's chunk had.

        Raises:
            ApiError: the API has no finish reason for this end.
        """

    def usage(self, usage: Usage) -> msgspec.Struct:
        """Return the chunk with the usage of the whole request."""


class ResponseBuilder(Protocol[R_co]):
    """Collects the outputs of all choices, and builds one response of them."""

    def add(self, index: int, output: StepOutput) -> None:
        """Take the next output of the choice `index`."""

    def build(self, usage: Usage) -> R_co:
        """Return the response, after the last output of every choice."""


class ContinuousUsage:
    """Adds the usage of their choice so far to the chunks of another builder, as vLLM's clients ask for it."""

    def __init__(self, chunks: ChunkBuilder) -> None:
        """Add to what `chunks` builds; each of its chunks has a field `usage`."""
        self._chunks = chunks
        self._counts: dict[int, tuple[int, int]] = {}  # by choice: tokens of its prompt, and tokens so far

    def start(self, index: int, first: StepOutput) -> msgspec.Struct | None:
        """Return the chunk before the first token of a choice."""
        self._counts[index] = (first.num_prompt_tokens, 0)
        chunk = self._chunks.start(index, first)
        return None if chunk is None else self._with_usage(index, chunk)

    def token(self, index: int, token: GeneratedToken) -> Iterator[msgspec.Struct]:
        """Yield the chunks of one token."""
        num_prompt_tokens, num_tokens = self._counts[index]
        self._counts[index] = (num_prompt_tokens, num_tokens + 1)
        for chunk in self._chunks.token(index, token):
            yield self._with_usage(index, chunk)

    def finish(self, index: int, last: StepOutput, *, text: str) -> msgspec.Struct:
        """Return the chunk that ends a choice."""
        chunk = self._chunks.finish(index, last, text=text)
        return msgspec.structs.replace(chunk, usage=usage_of([last], choices_per_prompt=1))

    def usage(self, usage: Usage) -> msgspec.Struct:
        """Return the chunk with the usage of the whole request."""
        return self._chunks.usage(usage)

    def _with_usage(self, index: int, chunk: msgspec.Struct) -> msgspec.Struct:
        prompt, completion = self._counts[index]
        usage = Usage(prompt_tokens=prompt, completion_tokens=completion, total_tokens=prompt + completion)
        return msgspec.structs.replace(chunk, usage=usage)


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


async def complete_response(
    streams: Sequence[RequestStream], builder: ResponseBuilder[R_co], *, choices_per_prompt: int
) -> R_co:
    """Return the response when all of `streams` have ended.

    Raises:
        ApiError: 500, a request failed; 503, the engine aborted one.
    """
    last_outputs: dict[int, StepOutput] = {}
    async with aclosing(merge_outputs(streams)) as outputs:
        async for index, output in outputs:
            raise_if_unfinished(output)
            builder.add(index, output)
            if output.finished:
                last_outputs[index] = output
    total = usage_of([last_outputs[i] for i in range(len(streams))], choices_per_prompt=choices_per_prompt)
    return builder.build(total)


def _tokens(output: StepOutput) -> list[GeneratedToken]:
    """Return the tokens of a step. The last one has the step's text."""
    num_tokens = len(output.token_ids)
    if num_tokens == 1:
        logprob = output.logprobs[0] if output.logprobs else None
        return [GeneratedToken(output.token_ids[0], output.text, logprob, output.deltas)]
    texts = [""] * (num_tokens - 1) + [output.text]
    no_deltas: Sequence[AnswerDelta] | None = None if output.deltas is None else ()
    deltas = [no_deltas] * (num_tokens - 1) + [output.deltas]
    logprobs: Sequence[TokenLogprob | None] = output.logprobs or [None] * num_tokens
    return [GeneratedToken(*token) for token in zip(output.token_ids, texts, logprobs, deltas, strict=False)]
