"""What a step adds to the parts of an answer: to its reasoning, its content, or one of its tool calls."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    from infer_engine.protocol.requests import StepOutput


class ReasoningDelta(msgspec.Struct, frozen=True, gc=False, tag="reasoning"):
    """More of what the model thinks before it answers."""

    text: str


class ContentDelta(msgspec.Struct, frozen=True, gc=False, tag="content"):
    """More of the text that is meant for the reader."""

    text: str


class ContentWasReasoning(msgspec.Struct, frozen=True, gc=False, tag="content_was_reasoning"):
    """All content so far was reasoning: its end has come, and its beginning was not marked.

    Whoever still holds the content moves it to the reasoning; a stream has sent it.
    """


class ToolCallDelta(msgspec.Struct, frozen=True, gc=False, tag="tool_call"):
    """The beginning of a tool call, or more of its arguments.

    Attributes:
        index: which of the answer's calls it is, from 0.
        name: of the tool, with the first delta of a call; None with the others.
        arguments: more of the JSON text of the arguments.
    """

    index: int
    name: str | None = None
    arguments: str = ""


AnswerDelta = ReasoningDelta | ContentDelta | ContentWasReasoning | ToolCallDelta


def answer_deltas(output: "StepOutput") -> Sequence[AnswerDelta]:
    """Return what `output` adds to an answer, in order; text that is not looked through is content."""
    if output.deltas is not None:
        return output.deltas
    return [ContentDelta(output.text)] if output.text else []
