"""Splits long results into chunks, so that other threads run while a result is decoded.

Decoding a frame holds Python's global lock. The log-probabilities of a prompt of 100000 tokens, with 20 tokens logprobs
for each, are 40 megabytes and take a second to decode. One frame of that size would block the event loop.
"""

from collections.abc import Iterator

import msgspec

from infer_engine.messages import StepResult, TokenOutput
from infer_engine.protocol import TokenLogprob

CHUNK_TOKENS = 512
"""Prompt tokens whose log-probabilities go into one frame, which takes a few milliseconds to decode."""


class PromptLogprobsChunk(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Some of a prompt's log-probabilities. The chunks come in order, before the result that they belong to.

    Attributes:
        request_id: the request that they belong to.
        logprobs: part of `TokenOutput.prompt_logprobs`, which is an empty list in the result itself.
    """

    request_id: str
    logprobs: list[TokenLogprob | None]


def split_into_chunks(result: StepResult) -> Iterator[PromptLogprobsChunk | StepResult]:
    """Yield the chunks of `result`, then the result without them."""
    outputs: list[TokenOutput] = []
    for output in result.outputs:
        logprobs = output.prompt_logprobs
        if logprobs is None or len(logprobs) <= CHUNK_TOKENS:
            outputs.append(output)
            continue
        for start in range(0, len(logprobs), CHUNK_TOKENS):
            yield PromptLogprobsChunk(request_id=output.request_id, logprobs=logprobs[start : start + CHUNK_TOKENS])
        outputs.append(msgspec.structs.replace(output, prompt_logprobs=[]))
    yield msgspec.structs.replace(result, outputs=outputs)


class ChunkAssembler:
    """Joins what `split_into_chunks` has split."""

    def __init__(self) -> None:
        """Start with no chunks."""
        self._chunks: dict[str, list[TokenLogprob | None]] = {}

    def add(self, chunk: PromptLogprobsChunk) -> None:
        """Keep a chunk until its result comes."""
        self._chunks.setdefault(chunk.request_id, []).extend(chunk.logprobs)

    def complete(self, result: StepResult) -> StepResult:
        """Return `result` with the chunks that came before it."""
        if not self._chunks:
            return result
        chunks, self._chunks = self._chunks, {}
        outputs = [
            msgspec.structs.replace(output, prompt_logprobs=chunks.get(output.request_id, output.prompt_logprobs))
            for output in result.outputs
        ]
        return msgspec.structs.replace(result, outputs=outputs)
