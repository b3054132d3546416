"""`DraftedCalls`: the calls in thinking behind which an answer has nothing, neither thinking nor content nor a call.

Models draft calls while they think, and some forget the end of their thinking before the call that they mean. More
follows a draft; nothing follows a call.
"""

from collections.abc import Sequence
from itertools import takewhile
from typing import Protocol

from infer_engine.protocol import AnswerDelta, ToolCallDelta


class _Parser(Protocol):
    callee: str | None

    @property
    def is_waiting(self) -> bool: ...

    def add(self, text: str) -> list[AnswerDelta]: ...

    def finish(self) -> list[AnswerDelta]: ...


class DraftedCalls:
    """Follows the reasoning of one answer."""

    __slots__ = ("_max_calls", "_parser", "_texts")

    def __init__(self, parser: _Parser, *, max_calls: int | None) -> None:
        """Read reasoning with `parser`, to which it is content and calls; at most `max_calls` of these count."""
        self._parser = parser
        self._max_calls = max_calls
        self._texts: list[str] = []

    def add(self, text: str) -> None:
        """Take the next piece of reasoning; it is read when the answer has ended, as most of it is no call."""
        self._texts.append(text)

    def finish(self) -> Sequence[ToolCallDelta]:
        """Return the calls with which the reasoning ended; none if the last one has not its end."""
        deltas = self._parser.add("".join(self._texts))
        is_whole = self._parser.callee is None and not self._parser.is_waiting
        deltas += self._parser.finish()
        from_end = takewhile(lambda delta: isinstance(delta, ToolCallDelta), reversed(deltas))
        calls = [each for each in reversed([*from_end]) if isinstance(each, ToolCallDelta)]
        if not calls or not is_whole:
            return []
        first = calls[0].index
        numbered = (ToolCallDelta(index=each.index - first, name=each.name, arguments=each.arguments) for each in calls)
        return list(takewhile(lambda each: self._max_calls is None or each.index < self._max_calls, numbered))
