"""`CallHeads`: what the core must know to see a tool call begin in an answer that is otherwise free."""

import msgspec

from infer_models.text import ReasoningFormat, ReasoningState, ToolCallFormat


class CallHeads(msgspec.Struct, frozen=True, kw_only=True):
    """How the heads of calls are written, and what comes before them.

    Attributes:
        reasoning_format: how the model writes reasoning, in which there are no calls; None if it does not.
        reasoning_state: where the prompt leaves off.
        tool_call_format: how it writes calls.
        tool_names: of the tools that are offered.
        strict_names: of those whose arguments must match their schemas, whatever the tokens.
        max_calls: after so many the answer is over.
        shown_ids: special tokens that have a text in answers.
    """

    reasoning_format: ReasoningFormat | None
    reasoning_state: ReasoningState
    tool_call_format: ToolCallFormat
    tool_names: tuple[str, ...]
    strict_names: tuple[str, ...] = ()
    max_calls: int
    shown_ids: tuple[int, ...] = ()
