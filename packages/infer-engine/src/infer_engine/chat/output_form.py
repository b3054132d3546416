"""`AnswerForm`: how a model writes the parts of an answer. Imports no grammar library."""

from collections.abc import Callable, Sequence

from infer_engine.chat.arguments.parameter_types import ParameterTypes
from infer_engine.messages import AnswerMarks
from infer_models.text import ReasoningState

TokenIdOf = Callable[[str], int | None]
"""Returns the id of a special token, by which alone a grammar can ask for it; None for any other text."""


class AnswerForm(AnswerMarks, frozen=True, kw_only=True):
    """The forms that an answer may have, besides what its request asks for.

    Attributes:
        token_id_of: tells special tokens from text.
        parameter_types: what the parameters of its tools are, where arguments are not written as JSON.
    """

    token_id_of: TokenIdOf
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
        shared = {name: getattr(self, name) for name in AnswerMarks.__struct_fields__}
        return AnswerMarks(**shared | {"is_free": is_free})
