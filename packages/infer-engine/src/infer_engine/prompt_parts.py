"""Results whose lists are long, in parts between which other threads run. Knows messages; knows no socket.

Decoding a frame keeps Python's global lock: a second for the log-probabilities of a prompt of 100000 tokens, which are
40 megabytes with 20 tokens listed for each. In that second an event loop would stand still.
"""

from collections.abc import Iterator

import msgspec

from infer_engine.messages import StepResult, TokenOutput
from infer_engine.protocol import TokenLogprob

PART_LENGTH = 512
"""Tokens of a prompt whose log-probabilities go into one frame: a few milliseconds of decoding."""


class PromptPart(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """A part of a prompt's log-probabilities, in order; it comes before the result that it belongs to.

    Attributes:
        request_id: whose.
        logprobs: as in `TokenOutput.prompt_logprobs`, where an empty list stands for all of its parts.
    """

    request_id: str
    logprobs: list[TokenLogprob | None]


def in_parts(result: StepResult) -> Iterator[PromptPart | StepResult]:
    """Yield what to send for `result`, itself last."""
    outputs: list[TokenOutput] = []
    for output in result.outputs:
        listed = output.prompt_logprobs
        if listed is None or len(listed) <= PART_LENGTH:
            outputs.append(output)
            continue
        for start in range(0, len(listed), PART_LENGTH):
            yield PromptPart(request_id=output.request_id, logprobs=listed[start : start + PART_LENGTH])
        outputs.append(msgspec.structs.replace(output, prompt_logprobs=[]))
    yield msgspec.structs.replace(result, outputs=outputs)


class PartCollector:
    """Puts together again what `in_parts` took apart."""

    def __init__(self) -> None:
        """No parts yet."""
        self._parts: dict[str, list[TokenLogprob | None]] = {}

    def add(self, part: PromptPart) -> None:
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
