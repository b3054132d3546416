"""`AnswerForm`: how a model writes the parts of an answer. Imports no grammar library."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from infer_engine.chat.arguments.parameter_types import ParameterTypes
from infer_engine.messages import AnswerMarks
from infer_models.text import ReasoningFormat, ReasoningState, ToolCallFormat

TokenIdOf = Callable[[str], int | None]
"""Returns the id of a special token, by which alone a grammar can ask for it; None for any other text."""

MAX_CALLS = 64
"""Most calls in one answer; a small model may never come to an end of its own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerForm:
    """The forms that an answer may have, besides what its request asks for.

    Attributes:
        reasoning_format: how the model writes reasoning; None if it does not.
        reasoning_state: where the prompt leaves off.
        tool_call_format: how the model writes tool calls; None if it may write none.
        token_id_of: tells special tokens from text.
        tool_names: names of the tools that it may call.
        strict_names: names of the tools whose schemas must be kept in full.
        max_calls: most calls of the answer.
        must_call: whether it must call.
        shown_ids: special tokens that have a text in answers.
        parameter_types: what the parameters of its tools are, where arguments are not written as JSON.
    """

    reasoning_format: ReasoningFormat | None
    reasoning_state: ReasoningState
    tool_call_format: ToolCallFormat | None
    token_id_of: TokenIdOf
    tool_names: tuple[str, ...] = ()
    strict_names: tuple[str, ...] = ()
    max_calls: int = MAX_CALLS
    must_call: bool = False
    shown_ids: frozenset[int] = frozenset()
    parameter_types: ParameterTypes | None = None

    @property
    def mark_ids(self) -> dict[str, int]:
        """The ids of the marks around calls that are special tokens."""
        return self._ids(() if self.tool_call_format is None else self.tool_call_format.markers)

    @property
    def reasoning_ids(self) -> dict[str, int]:
        """The ids of the marks around reasoning that are special tokens."""
        return self._ids(() if self.reasoning_format is None else self.reasoning_format.markers)

    def _ids(self, marks: Sequence[str]) -> dict[str, int]:
        return {mark: token_id for mark in marks if (token_id := self.token_id_of(mark)) is not None}

    @property
    def thinks(self) -> bool:
        """Whether a grammar of the whole answer lets reasoning come first."""
        return self.reasoning_format is not None and self.reasoning_state is not ReasoningState.NONE

    @property
    def has_channels(self) -> bool:
        """Whether the answer comes as messages in channels; the rest of a message that the prompt began does not."""
        return self.thinks and self.reasoning_format is not None and bool(self.reasoning_format.channels)

    def marks(self, *, is_free: bool) -> AnswerMarks:
        """Return the marks by which an answer is read; `is_free`: its content follows no grammar."""
        return AnswerMarks(
            reasoning_format=self.reasoning_format,
            reasoning_state=self.reasoning_state,
            tool_call_format=self.tool_call_format,
            tool_names=self.tool_names,
            strict_names=self.strict_names,
            max_calls=self.max_calls,
            must_call=self.must_call,
            is_free=is_free,
            shown_ids=tuple(sorted(self.shown_ids)),
        )
