"""Results whose lists are long, in parts between which other threads run. Knows messages; knows no socket.

Decoding a frame keeps Python's global lock: a second for the log-probabilities of a prompt of 100000 tokens, which are
40 megabytes with 20 tokens listed for each. In that second an event loop would stand still.
"""

from collections.abc import Iterator

import msgspec

from infer_engine.ipc.messages import StepResult, TokenOutput
from infer_engine.protocol import TokenLogprob

CHUNK_TOKENS = 512
"""Tokens of a prompt whose log-probabilities go into one frame: a few milliseconds of decoding."""


class PromptLogprobsChunk(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """A part of a prompt's log-probabilities, in order; it comes before the result that it belongs to.

    Attributes:
        request_id: whose.
        logprobs: as in `TokenOutput.prompt_logprobs`, where an empty list stands for all of its parts.
    """

    request_id: str
    logprobs: list[TokenLogprob | None]


def split_into_chunks(result: StepResult) -> Iterator[PromptLogprobsChunk | StepResult]:
    """Yield what to send for `result`, itself last."""
    outputs: list[TokenOutput] = []
    for output in result.outputs:
        listed = output.prompt_logprobs
        if listed is None or len(listed) <= CHUNK_TOKENS:
            outputs.append(output)
            continue
        for start in range(0, len(listed), CHUNK_TOKENS):
            yield PromptLogprobsChunk(request_id=output.request_id, logprobs=listed[start : start + CHUNK_TOKENS])
        outputs.append(msgspec.structs.replace(output, prompt_logprobs=[]))
    yield msgspec.structs.replace(result, outputs=outputs)


class ChunkAssembler:
    """Puts together again what `split_into_chunks` took apart."""

    def __init__(self) -> None:
        """No parts yet."""
        self._parts: dict[str, list[TokenLogprob | None]] = {}

    def add(self, part: PromptLogprobsChunk) -> None:
        """Keep a part until its result comes."""
        self._parts.setdefault(part.request_id, []).extend(part.logprobs)

    def complete(self, result: StepResult) -> StepResult:
        """Return `result` with the parts that came before it."""
        if not self._parts:
            return result
        parts, self._parts = self._parts, {}
        outputs = [
            msgspec.structs.replace(output, prompt_logprobs=parts.get(output.request_id, output.prompt_logprobs))
            for output in result.outputs
        ]
        return msgspec.structs.replace(result, outputs=outputs)
