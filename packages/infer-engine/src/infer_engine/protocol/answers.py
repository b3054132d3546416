"""`AnswerBuilder`: collects the outputs of one request as an answer, in blocks of reasoning, text and tool calls."""

from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from infer_engine.protocol.requests import (
    ContentDelta,
    ContentWasReasoning,
    ReasoningDelta,
    StepOutput,
    answer_deltas,
)

BlockKind = Literal["reasoning", "text", "tool_call"]


@dataclass(slots=True, kw_only=True)
class AnswerBlock:
    """One block of an answer, as far as it has come.

    Attributes:
        kind: what the block holds.
        index: place of the block in the answer, from 0.
        pieces: the text, or the JSON text of a call's arguments, in pieces.
        name: name of the called tool; empty in other blocks.
    """

    kind: BlockKind
    index: int
    pieces: list[str] = field(default_factory=list)
    name: str = ""

    @property
    def text(self) -> str:
        """The text so far."""
        return "".join(self.pieces)


class BlockEvent(NamedTuple):
    """A block begins, without text (`start`); it has `text` more (`grow`); or it is complete (`end`)."""

    kind: Literal["start", "grow", "end"]
    block: AnswerBlock
    text: str = ""


class AnswerBuilder:
    """Collects the outputs of one request, in their order: each goes to `add` or each to `take`.

    Attributes:
        blocks: the blocks that have begun, in order; the last one may still grow.
    """

    __slots__ = ("_is_open", "_last", "_num_unmarked", "blocks")

    def __init__(self) -> None:
        """Begin with no block."""
        self.blocks: list[AnswerBlock] = []
        self._last: StepOutput | None = None
        self._is_open = False
        self._num_unmarked = 0  # blocks before the end of reasoning whose beginning was not marked

    @property
    def last(self) -> StepOutput:
        """The latest output; there must have been one."""
        assert self._last is not None, "a request has outputs"
        return self._last

    @property
    def calls(self) -> list[AnswerBlock]:
        """The blocks of tool calls."""
        return [block for block in self.blocks if block.kind == "tool_call"]

    def text_of(self, kind: BlockKind) -> str:
        """Return the text of all blocks of one kind, joined."""
        return "".join([piece for block in self.blocks if block.kind == kind for piece in block.pieces])

    def add(self, output: StepOutput) -> list[BlockEvent]:
        """Take the next output of an answer that is sent as it grows; return what it changes, in order."""
        self._last = output
        events: list[BlockEvent] = []
        for delta in answer_deltas(output):
            if isinstance(delta, ContentDelta):
                self._grow("text", delta.text, events)
            elif isinstance(delta, ReasoningDelta):
                self._grow("reasoning", delta.text, events)
            elif isinstance(delta, ContentWasReasoning):
                self._end(events)
                self._num_unmarked = len(self.blocks)
            else:
                if delta.name is not None:
                    self._start("tool_call", delta.name, events)
                self._grow("tool_call", delta.arguments, events)
        if output.finished:
            self._end(events)
        return events

    def take(self, output: StepOutput) -> None:
        """Take the next output where only the whole answer counts: what turns out to be reasoning becomes it."""
        self.add(output)
        for block in self.blocks[: self._num_unmarked]:
            if block.kind == "text":
                block.kind = "reasoning"

    def _grow(self, kind: BlockKind, text: str, events: list[BlockEvent]) -> None:
        if not text:
            return
        if not self._is_open or self.blocks[-1].kind != kind:
            self._start(kind, "", events)
        block = self.blocks[-1]
        block.pieces.append(text)
        events.append(BlockEvent("grow", block, text))

    def _start(self, kind: BlockKind, name: str, events: list[BlockEvent]) -> None:
        self._end(events)
        self.blocks.append(AnswerBlock(kind=kind, index=len(self.blocks), name=name))
        self._is_open = True
        events.append(BlockEvent("start", self.blocks[-1]))

    def _end(self, events: list[BlockEvent]) -> None:
        if self._is_open:
            self._is_open = False
            events.append(BlockEvent("end", self.blocks[-1]))
