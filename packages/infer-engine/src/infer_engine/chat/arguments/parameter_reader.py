"""`ParameterReader`: makes a JSON object of arguments that are written one by one, as they arrive.

Texts are passed on while they are written; of other values, and of those that may be either, the end is waited for.
"""

import json
import re
from collections.abc import Sequence

from infer_engine.chat.arguments.parameter_types import ALL_TYPES, TEXT, ParameterTypes, read_json
from infer_engine.chat.arguments.step_reader import Put, StepReader
from infer_engine.chat.call_marks import MORE, NO, match, num_begun, skip_blanks
from infer_models.text import ParameterFormat

MAX_NAME_CHARACTERS = 256

_NO_NAME = re.compile(r"[<\r\n]")
_BEGINNINGS = {"number": "-0123456789", "boolean": "tfTF", "null": "nN", "object": "{", "array": "["}
"""What values of a type begin with; constants also as Python writes them."""
_CONSTANTS = {"true": "boolean", "false": "boolean", "null": "null", "none": "null"}


class ParameterReader(StepReader):
    """Reads the arguments of one call after another."""

    __slots__ = (
        "_arguments_end",
        "_closing",
        "_end_marks",
        "_format",
        "_is_at_start",
        "_is_text",
        "_marks",
        "_name",
        "_name_ends",
        "_num_read",
        "_tool_name",
        "_types",
        "_types_of_tools",
        "_value",
        "_value_ends",
    )

    def __init__(
        self, parameter_format: ParameterFormat, arguments_end: str, closing: Sequence[str], types: ParameterTypes
    ) -> None:
        """Read up to `arguments_end`, with which `closing` begins; `types` tell texts from other values."""
        self._format = parameter_format
        self._arguments_end = arguments_end
        self._types_of_tools = types
        names_end = (parameter_format.name_end, parameter_format.json_name_end)
        self._name_ends = [each.splitlines() for each in names_end if each]
        self._closing = closing
        self._end_marks = (parameter_format.end, *closing[:1])
        self._value_ends = re.compile("|".join(map(re.escape, self._end_marks)))
        self._marks = re.compile("|".join(map(re.escape, (parameter_format.begin, arguments_end))))
        self.begin("")

    def begin(self, tool_name: str) -> None:
        """Begin with the arguments of a call of a tool."""
        self._tool_name = tool_name
        self._name = ""
        self._num_read = 0
        self._types = ALL_TYPES
        self._is_text: bool | None = None
        self._is_at_start = False
        self._value: list[str] = []
        self._start(self._read_between)

    def _read_between(self, text: str, position: int, put: Put) -> tuple[int, bool]:
        """Read up to the next parameter or the end; what else is there is passed over."""
        found = self._marks.search(text, position)
        if found is None:
            rest = text[position:]
            return len(text) - max(num_begun(rest, mark) for mark in (self._format.begin, self._arguments_end)), False
        if found[0] == self._arguments_end:
            put("}" if self._num_read else "{}")
            self._is_over = True
        else:
            self._step = self._read_name
        return found.end(), True

    def _read_name(self, text: str, position: int, put: Put) -> tuple[int, bool]:
        """Read a name and the mark behind it; what is none is passed over."""
        start = text.find(self._name_ends[0][0][0], position, position + MAX_NAME_CHARACTERS)
        if start < 0 and len(text) - position < MAX_NAME_CHARACTERS:
            return position, False
        ends = [match(text, start, pieces) for pieces in self._name_ends] if start >= 0 else [NO]
        if max(ends) == MORE:
            return position, False
        self._step = self._read_between
        if max(ends) == NO or start == position or _NO_NAME.search(text, position, start):
            return max(position, start), True
        self._name = text[position:start]
        put(("{" if self._num_read == 0 else ", ") + json.dumps(self._name, ensure_ascii=False) + ": ")
        self._num_read += 1
        self._begin_value(put, is_said_to_be_text=len(ends) == 1 or ends[0] >= 0)
        return max(ends), True

    def _begin_value(self, put: Put, *, is_said_to_be_text: bool) -> None:
        self._types = self._types_of_tools.of(self._tool_name, self._name)
        if self._format.json_name_end:
            self._types = frozenset((TEXT,)) if is_said_to_be_text else (self._types - {TEXT} or ALL_TYPES - {TEXT})
        self._value = []
        self._is_text = TEXT in self._types and (len(self._types) == 1 or None)
        if self._is_text:
            put('"')
        self._is_at_start = self._format.own_lines
        self._step = self._read_value

    def _read_value(self, text: str, position: int, put: Put) -> tuple[int, bool]:
        if self._is_at_start:
            if position == len(text):
                return position, False
            self._is_at_start = False
            if text[position] == "\n":
                position += 1
        for found in self._value_ends.finditer(text, position):
            is_forgotten = found[0] != self._format.end
            follower = match(text, found.start(), self._closing) if is_forgotten else self._follower(text, found.end())
            if follower == NO:
                continue
            stop = self._before_line_break(text, position, found.start())
            self._add_to_value(text[position:stop], put)
            if follower == MORE:
                return stop, False
            self._end_value(put)
            return (found.start() if is_forgotten else found.end()), True
        stop = len(text) - max(num_begun(text[position:], end) for end in self._end_marks)
        stop = self._before_line_break(text, position, stop)
        self._add_to_value(text[position:stop], put)
        return stop, False

    def _follower(self, text: str, position: int) -> int:
        """Return where a mark begins that only follows a value; MORE or NO."""
        start = skip_blanks(text, position)
        found = [match(text, start, [mark]) for mark in (self._format.begin, self._arguments_end)]
        return start if max(found) >= 0 else max(found)

    def _before_line_break(self, text: str, start: int, end: int) -> int:
        """Return `end`, or where the line break before it begins, which is no part of a value on lines of its own."""
        return end - 1 if self._format.own_lines and end > start and text[end - 1] == "\n" else end

    def _add_to_value(self, text: str, put: Put) -> None:
        if not text:
            return
        if self._is_text is None and (first := text.lstrip()[:1]):
            others = "".join(_BEGINNINGS[each] for each in self._types - {TEXT})
            self._is_text = first not in others
            if self._is_text:
                text = "".join((*self._value, text))
                put('"')
        if self._is_text:
            put(_escaped(text))
        else:
            self._value.append(text)

    def _end_value(self, put: Put) -> None:
        self._step = self._read_between
        put('"' if self._is_text else self._json_of("".join(self._value)))
        self._value = []

    def _json_of(self, text: str) -> str:
        """Return a value whose type is not known yet."""
        kind, stripped = read_json(text)
        may_be_text = TEXT in self._types
        if kind in self._types - {TEXT} and not (
            may_be_text and self._types_of_tools.is_text(self._tool_name, self._name, text)
        ):
            return stripped
        constant = stripped.lower()
        if not may_be_text and _CONSTANTS.get(constant) in self._types:
            return constant.replace("none", "null")
        return f'"{_escaped(text)}"'


def _escaped(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)[1:-1]
