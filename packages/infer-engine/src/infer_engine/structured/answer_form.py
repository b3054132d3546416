"""`AnswerForm`: how a model writes the parts of an answer. Imports no grammar library."""

from collections.abc import Callable
from dataclasses import dataclass

from infer_models.text import ReasoningFormat, ReasoningState, ToolCallFormat

TokenIdOf = Callable[[str], int | None]
"""Returns the id of a special token, by which alone a grammar can ask for it; None for any other text."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerForm:
    """What an answer may look like, besides what its request asks for.

    Attributes:
        reasoning_format: how the model writes reasoning; None if it does not.
        reasoning_state: where the prompt leaves off.
        tool_call_format: how the model writes tool calls; None if it may write none.
        token_id_of: tells special tokens from text.
    """

    reasoning_format: ReasoningFormat | None
    reasoning_state: ReasoningState
    tool_call_format: ToolCallFormat | None
    token_id_of: TokenIdOf
