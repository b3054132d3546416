"""An answer as a list of blocks: reasoning, text and tool calls, in the order in which the model wrote them."""

import secrets
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Literal

from infer_engine.protocol import (
    ContentDelta,
    ContentWasReasoning,
    ReasoningDelta,
    RequestStream,
    StepOutput,
    ToolCallDelta,
    answer_deltas,
)
from infer_server.api.failures import raise_if_unfinished

BlockKind = Literal["reasoning", "text", "tool_call"]

_CALL_ID_BYTES = 12


@dataclass(slots=True, kw_only=True)
class AnswerBlock:
    """One block of an answer, as far as it has come.

    Attributes:
        kind: what it is.
        index: its place in the answer, from 0.
        pieces: its text, or the JSON text of a call's arguments, in pieces.
        name: of the tool that is called; empty in other blocks.
        call_id: of the call; empty in other blocks.
    """

    kind: BlockKind
    index: int
    pieces: list[str] = field(default_factory=list)
    name: str = ""
    call_id: str = ""

    @property
    def text(self) -> str:
        """The text so far."""
        return "".join(self.pieces)


@dataclass(frozen=True, slots=True)
class BlockStarted:
    """A block begins; it has no text yet."""

    block: AnswerBlock


@dataclass(frozen=True, slots=True)
class BlockGrown:
    """A block has `text` more."""

    block: AnswerBlock
    text: str


@dataclass(frozen=True, slots=True)
class BlockEnded:
    """A block is complete."""

    block: AnswerBlock


BlockEvent = BlockStarted | BlockGrown | BlockEnded


class AnswerBlocks:
    """Collects the outputs of one request as blocks.

    Attributes:
        blocks: those that have begun, in order; the last one may still grow.
    """

    def __init__(self) -> None:
        """Begin with no block."""
        self.blocks: list[AnswerBlock] = []
        self._is_open = False
        self._num_unmarked = 0  # blocks that came before the end of reasoning whose beginning was not marked

    @property
    def has_calls(self) -> bool:
        """Whether a tool call has begun."""
        return any(block.kind == "tool_call" for block in self.blocks)

    def text_of(self, kind: BlockKind) -> str:
        """Return the text of all blocks of one kind, joined."""
        return "".join(block.text for block in self.blocks if block.kind == kind)

    def add(self, output: StepOutput) -> Iterator[BlockEvent]:
        """Take the next output; yield what it changes, in order. It must be read to its end."""
        for delta in answer_deltas(output):
            match delta:
                case ReasoningDelta():
                    yield from self._grow("reasoning", delta.text)
                case ContentDelta():
                    yield from self._grow("text", delta.text)
                case ContentWasReasoning():
                    yield from self._end()
                    self._num_unmarked = len(self.blocks)
                case ToolCallDelta():
                    if delta.name is not None:
                        yield from self._start("tool_call", name=delta.name)
                    yield from self._grow("tool_call", delta.arguments)
        if output.finished:
            yield from self._end()

    def take(self, output: StepOutput) -> None:
        """Take the next output; only the whole answer counts, so what turns out to be reasoning becomes it."""
        for _ in self.add(output):
            pass
        for block in self.blocks[: self._num_unmarked]:
            if block.kind == "text":
                block.kind = "reasoning"

    def _grow(self, kind: BlockKind, text: str) -> Iterator[BlockEvent]:
        if not text:
            return
        if not self._is_open or self.blocks[-1].kind != kind:
            yield from self._start(kind)
        block = self.blocks[-1]
        block.pieces.append(text)
        yield BlockGrown(block, text)

    def _start(self, kind: BlockKind, *, name: str = "") -> Iterator[BlockEvent]:
        yield from self._end()
        call_id = new_call_id() if kind == "tool_call" else ""
        self.blocks.append(AnswerBlock(kind=kind, index=len(self.blocks), name=name, call_id=call_id))
        self._is_open = True
        yield BlockStarted(self.blocks[-1])

    def _end(self) -> Iterator[BlockEvent]:
        if self._is_open:
            self._is_open = False
            yield BlockEnded(self.blocks[-1])


async def whole_answer(stream: RequestStream) -> tuple[AnswerBlocks, StepOutput]:
    """Read `stream` to its end; return the answer, and the last output.

    Raises:
        ApiError: 500, the request failed; 503, the server's shutdown aborted it.
    """
    answer = AnswerBlocks()
    last: StepOutput | None = None
    async for output in stream:
        raise_if_unfinished(output)
        answer.take(output)
        last = output
    assert last is not None, "a stream has a last output"
    return answer, last


def new_call_id() -> str:
    """Return an id for a tool call, of letters and digits after its prefix."""
    return f"call_{secrets.token_hex(_CALL_ID_BYTES)}"
