"""`AnswerParser`: takes the text of an answer apart into reasoning, content and tool calls, as it arrives.

A state machine whose work grows with the length of the text alone. What it does not recognize is content: whatever a
model writes, nothing is raised, and no text is lost but the marks, the white space between the parts, and a call that
is cut off before its arguments.
"""

import re
from collections.abc import Callable, Sequence

from infer_engine.protocol import AnswerDelta, ContentDelta, ReasoningDelta, ToolCallDelta
from infer_models.text import ReasoningFormat, ReasoningState, ToolCallFormat

MAX_NAME_CHARACTERS = 128
_MAX_BLANKS = 8
_INSIDE_JSON = re.compile(r'[{}\[\]"]')
_INSIDE_STRING = re.compile(r'["\\]')

_MORE = -1  # the text may still become a match
_NO = -2

_Step = Callable[[str, int], int]
"""Reads text from a position on; returns where the next step goes on. What it cannot tell yet it holds back."""


class AnswerParser:
    """Parses one answer.

    Attributes:
        is_reasoning: whether the text that comes next is reasoning, as far as is known.
    """

    __slots__ = (
        "_blanks",
        "_calls",
        "_deltas",
        "_depth",
        "_drops_blanks",
        "_held",
        "_in_string",
        "_is_escaped",
        "_num_calls",
        "_reasoning",
        "_step",
        "is_reasoning",
    )

    def __init__(
        self,
        *,
        reasoning_format: ReasoningFormat | None = None,
        state: ReasoningState = ReasoningState.NONE,
        tool_call_format: ToolCallFormat | None = None,
    ) -> None:
        """Begin where the prompt leaves off, in `state`; look for calls only with a `tool_call_format`."""
        self._reasoning = reasoning_format
        self._calls = None if tool_call_format is None else _CallMarks(tool_call_format)
        self._deltas: list[AnswerDelta] = []
        self._held = ""
        self._blanks: list[str] = []  # white space that belongs to a part only if more of its text follows
        self._drops_blanks = False  # at the beginning of a part
        self._num_calls = 0
        self._depth = 0
        self._in_string = self._is_escaped = False
        self.is_reasoning = False
        self._step: _Step = self._read_answer
        if reasoning_format is not None and state is ReasoningState.OPEN:
            self._begin_reasoning()
        elif reasoning_format is not None and state is ReasoningState.MAY_BEGIN:
            self._step = self._read_beginning

    def add(self, text: str) -> list[AnswerDelta]:
        """Take the next piece of text; return what it settles, in order."""
        text, self._held = self._held + text, ""
        position = 0
        while position < len(text):
            position = self._step(text, position)
        return self._take()

    def finish(self) -> list[AnswerDelta]:
        """Return what was held back: no more text comes."""
        held, self._held = self._held, ""
        if self.is_reasoning:
            self._put(ReasoningDelta, held)
        elif self._step not in (self._read_first_head, self._read_next_head, self._read_call_end):
            self._put(ContentDelta, held)
            if self._blanks and not self._drops_blanks:
                self._deltas.append(ContentDelta("".join(self._blanks)))
        return self._take()

    def _take(self) -> list[AnswerDelta]:
        deltas, self._deltas = self._deltas, []
        return deltas

    def _put(self, kind: type[ReasoningDelta | ContentDelta], text: str) -> None:
        """Add text to the current part; white space at its end waits until more follows."""
        if text and not self._blanks and not self._drops_blanks and not text[-1].isspace():  # as most is
            self._deltas.append(kind(text))
            return
        visible = text.rstrip()
        if not visible:
            if text:
                self._blanks.append(text)
            return
        end = text[len(visible) :]
        if self._drops_blanks:
            visible, self._drops_blanks = visible.lstrip(), False
        elif self._blanks:
            visible = "".join((*self._blanks, visible))
        self._deltas.append(kind(visible))
        self._blanks = [end] if end else []

    def _end_part(self) -> None:
        """Drop the white space at the end of a part and at the beginning of the next one."""
        self._blanks = []
        self._drops_blanks = True

    def _hold(self, text: str, position: int) -> int:
        self._held = text[position:]
        return len(text)

    def _begin_reasoning(self) -> None:
        self.is_reasoning = True
        self._end_part()
        self._step = self._read_reasoning

    def _read_beginning(self, text: str, position: int) -> int:
        """Read the beginning of an answer that may begin with reasoning."""
        assert self._reasoning is not None
        begin = self._reasoning.begin
        start = _skip_blanks(text, position)
        if text.startswith(begin, start):
            self._begin_reasoning()
            return start + len(begin)
        if begin.startswith(text[start : start + len(begin)]):
            return self._hold(text, position)
        self._step = self._read_answer
        return position

    def _read_reasoning(self, text: str, position: int) -> int:
        assert self._reasoning is not None
        marker = self._reasoning.end
        end = text.find(marker, position)
        if end < 0:
            return self._put_all_but(ReasoningDelta, text, position, marker)
        self._put(ReasoningDelta, text[position:end])
        self._end_part()
        self.is_reasoning = False
        self._step = self._read_answer
        return end + len(marker)

    def _read_answer(self, text: str, position: int) -> int:
        """Read content up to the first call."""
        if self._calls is None:
            return self._read_content(text, position)
        if not self._calls.format.is_anywhere:
            return self._read_answer_of_one_kind(text, position, self._calls.format)
        trigger = self._calls.format.trigger
        start = text.find(trigger, position)
        if start < 0:
            return self._put_all_but(ContentDelta, text, position, trigger)
        self._put(ContentDelta, text[position:start])
        self._step = self._read_first_head
        return start

    def _read_answer_of_one_kind(self, text: str, position: int, call_format: ToolCallFormat) -> int:
        """Read the beginning of an answer that is all text or all calls."""
        start = _skip_blanks(text, position)
        if call_format.prefix:
            if text.startswith(call_format.prefix, start):
                position = start + len(call_format.prefix)
                start = _skip_blanks(text, position)
            elif call_format.prefix.startswith(text[start : start + len(call_format.prefix)]):
                return self._hold(text, position)
        if text.startswith(call_format.trigger, start):
            self._step = self._read_first_head
            return start
        if call_format.trigger.startswith(text[start : start + len(call_format.trigger)]):
            return self._hold(text, position)
        self._step = self._read_content
        return position

    def _read_content(self, text: str, position: int) -> int:
        self._put(ContentDelta, text[position:] if position else text)
        return len(text)

    def _read_first_head(self, text: str, position: int) -> int:
        assert self._calls is not None
        return self._read_head(text, position, self._calls.first_begin)

    def _read_next_head(self, text: str, position: int) -> int:
        assert self._calls is not None
        return self._read_head(text, position, self._calls.begin)

    def _read_head(self, text: str, position: int, begin: Sequence[str]) -> int:
        """Read a call up to its arguments; text that turns out to be no call is content."""
        assert self._calls is not None
        end, name = self._calls.match_head(text, position, begin)
        if end == _MORE:
            return self._hold(text, position)
        if end == _NO:
            end = position + len(self._calls.format.trigger)
            self._put(ContentDelta, text[position:end])
            self._step = self._read_answer if self._calls.format.is_anywhere else self._read_content
            return end
        self._end_part()
        self._deltas.append(ToolCallDelta(index=self._num_calls, name=name))
        self._num_calls += 1
        self._step = self._read_arguments
        return end

    def _read_arguments(self, text: str, start: int) -> int:
        """Read a JSON object, of which the beginning may have been read."""
        position = start
        while position < len(text):
            if self._is_escaped:
                self._is_escaped = False
                position += 1
                continue
            found = (_INSIDE_STRING if self._in_string else _INSIDE_JSON).search(text, position)
            if found is None:
                break
            position = found.end()
            match found[0]:
                case '"':
                    self._in_string = not self._in_string
                case "\\":
                    self._is_escaped = True
                case "{" | "[":
                    self._depth += 1
                case _:
                    self._depth -= 1
                    if self._depth == 0:
                        self._step = self._read_call_end
                        self._put_arguments(text[start:position])
                        return position
        self._put_arguments(text[start:] if start else text)
        return len(text)

    def _put_arguments(self, text: str) -> None:
        self._deltas.append(ToolCallDelta(index=self._num_calls - 1, arguments=text))

    def _read_call_end(self, text: str, position: int) -> int:
        assert self._calls is not None
        end = _match(text, _skip_blanks(text, position), self._calls.call_end)
        if end == _MORE:
            return self._hold(text, position)
        self._step = self._read_after_call
        return position if end == _NO else end

    def _read_after_call(self, text: str, position: int) -> int:
        """Read what follows a call: another one, the end of all, or text."""
        assert self._calls is not None
        marks = self._calls
        position = _skip_blanks(text, position)
        if position == len(text) or text[position].isspace():  # white space between calls has no meaning
            return position
        after_separator = _match(text, position, marks.separator)
        if after_separator >= 0:
            after_separator = _skip_blanks(text, after_separator)
            next_call = _match(text, after_separator, marks.begin)
            if next_call == _MORE:
                return self._hold(text, position)
            if next_call != _NO:
                self._step = self._read_next_head
                return after_separator
        self._step = self._read_answer if marks.format.is_anywhere else self._read_content
        end = _match(text, position, marks.end)
        return position if end < 0 else end

    def _put_all_but(self, kind: type[ReasoningDelta | ContentDelta], text: str, position: int, marker: str) -> int:
        """Add the rest of `text` to the current part, but hold back its end if `marker` may begin there."""
        rest = text[position:] if position else text
        num_held = _num_begun(rest, marker) if marker[0] in rest else 0
        if not num_held:
            self._put(kind, rest)
            return len(text)
        self._put(kind, rest[:-num_held])
        return self._hold(text, len(text) - num_held)


class _CallMarks:
    """The marks of a format, split at their white space."""

    __slots__ = ("_before_arguments", "begin", "call_end", "end", "first_begin", "format", "separator")

    def __init__(self, call_format: ToolCallFormat) -> None:
        self.format = call_format
        self.begin = call_format.call_begin.split()
        self.first_begin = [*call_format.begin.split(), *self.begin]
        self.call_end = call_format.call_end.split()
        self.separator = call_format.separator.split()
        self.end = call_format.end.split()
        self._before_arguments = call_format.before_arguments.split()

    def match_head(self, text: str, position: int, begin: Sequence[str]) -> tuple[int, str]:
        """Return where the arguments of the call at `position` begin, and the tool's name.

        In place of a position there may be `_MORE` or `_NO`.
        """
        start = _match(text, position, begin)
        if start < 0:
            return start, ""
        name_end = text.find(self._before_arguments[0][0], start, start + MAX_NAME_CHARACTERS + 1)
        if name_end < 0:
            return (_MORE if len(text) - start <= MAX_NAME_CHARACTERS else _NO), ""
        end = _match(text, name_end, self._before_arguments)
        if end < 0 or name_end == start:
            return (_NO if name_end == start else end), ""
        end = _skip_blanks(text, end)
        if end == len(text):
            return _MORE, ""
        return (end if text[end] == "{" else _NO), text[start:name_end]


def _match(text: str, position: int, pieces: Sequence[str]) -> int:
    """Return where `pieces`, with little or no white space between them, end if they begin at `position`."""
    for index, piece in enumerate(pieces):
        if index:
            position = _skip_blanks(text, position)
        if not text.startswith(piece, position):
            is_begun = piece.startswith(text[position : position + len(piece)])
            return _MORE if is_begun else _NO
        position += len(piece)
    return position


def _skip_blanks(text: str, position: int) -> int:
    end = min(len(text), position + _MAX_BLANKS)
    while position < end and text[position].isspace():
        position += 1
    return position


def _num_begun(text: str, marker: str) -> int:
    """Return the most characters at the end of `text` with which `marker` begins, but is not complete."""
    position = text.find(marker[0], max(0, len(text) - len(marker) + 1))
    while position >= 0:
        if marker.startswith(text[position:]):
            return len(text) - position
        position = text.find(marker[0], position + 1)
    return 0
