"""`ChannelParser`: takes an answer apart that comes as messages in channels, as gpt-oss writes it.

    <|channel|>analysis<|message|>TEXT<|end|>                                       reasoning
    <|start|>assistant<|channel|>commentary<|message|>TEXT<|end|>                   content: what it says before calls
    <|start|>assistant<|channel|>commentary to=functions.NAME <|constrain|>json<|message|>ARGUMENTS<|call|>   a call
    <|start|>assistant<|channel|>final<|message|>TEXT<|return|>                     content

Headers are in no text. A message to somebody else than an offered tool is reasoning: it is not meant for the reader.
"""

import re
from collections.abc import Callable, Collection

from infer_engine.chat.arguments.json_object_reader import JsonObjectReader
from infer_engine.chat.call_marks import num_begun
from infer_engine.protocol import AnswerDelta, ContentDelta, ReasoningDelta, ToolCallDelta

_START, _CHANNEL, _MESSAGE = "<|start|>", "<|channel|>", "<|message|>"
_ENDS = ("<|end|>", "<|call|>", "<|return|>", _START, _CHANNEL)
_END_OF_MESSAGE = re.compile("|".join(map(re.escape, _ENDS)))
_CHANNEL_NAME = re.compile(r"<\|channel\|>\s*(\w*)")
_RECIPIENT = re.compile(r"to=([^\s<]+)")
_FUNCTIONS = "functions."
_MAX_HEADER_CHARACTERS = 1_000

_Kind = type[ReasoningDelta | ContentDelta]
_Step = Callable[[str, int], int]


class ChannelParser:
    """Parses one answer; its attributes are those of `AnswerParser`."""

    __slots__ = (
        "_deltas",
        "_held",
        "_json",
        "_kind",
        "_kinds_so_far",
        "_max_calls",
        "_needs_gap",
        "_num_calls",
        "_step",
        "_tool_names",
        "begun",
        "call_number",
        "callee",
        "is_over",
        "is_reasoning",
    )

    def __init__(self, *, tool_names: Collection[str] = (), max_calls: int | None = None) -> None:
        """Begin behind `<|start|>assistant`; look for calls of `tool_names`, of which `max_calls` end the answer."""
        self._tool_names = frozenset(tool_names)
        self._max_calls = max_calls
        self._deltas: list[AnswerDelta] = []
        self._held = ""
        self._json = JsonObjectReader()
        self._kind: _Kind = ContentDelta
        self._kinds_so_far: set[_Kind] = set()
        self._needs_gap = False
        self._num_calls = 0
        self._step: _Step = self._read_between
        self.is_reasoning = False
        self.callee: str | None = None
        self.call_number = 0
        self.begun = ""
        self.is_over = False

    @property
    def may_begin_reasoning(self) -> bool:
        """Whether the text that comes next is the name of a channel."""
        return self._step == self._read_header and self._held.rstrip().endswith(_CHANNEL)

    @property
    def is_waiting(self) -> bool:
        """Whether text was held back, as that of a header is before it is whole."""
        return bool(self._held)

    def add(self, text: str) -> list[AnswerDelta]:
        """Take the next piece of text; return what it settles, in order."""
        text, self._held = self._held + text, ""
        position = 0
        while position < len(text):
            position = self._step(text, position)
        return self._take()

    def finish(self) -> list[AnswerDelta]:
        """Return what was held back: no more text comes. A header that is cut off is no text."""
        held, self._held = self._held, ""
        if self._step == self._read_between and not held.lstrip().startswith("<|"):
            self._begin_message(ContentDelta)
        if self._step == self._read_message:
            self._put(held)
        return self._take()

    def foresee(self, _: str) -> None:
        """Return nothing: the mark before arguments is a token of its own."""

    def _take(self) -> list[AnswerDelta]:
        deltas, self._deltas = self._deltas, []
        return deltas

    def _hold(self, text: str, position: int) -> int:
        self._held = text[position:]
        return len(text)

    def _put(self, text: str) -> None:
        if text:
            self._deltas.append(self._kind("\n\n" + text if self._needs_gap else text))
            self._needs_gap = False
            self._kinds_so_far.add(self._kind)

    def _begin_message(self, kind: _Kind) -> None:
        self._kind = kind
        self.is_reasoning = kind is ReasoningDelta
        self._needs_gap = kind in self._kinds_so_far
        self._step = self._read_message

    def _read_between(self, text: str, position: int) -> int:
        """Read what follows the end of a message: a header, or text without one."""
        rest = text[position:].lstrip()
        if not rest or any(mark.startswith(rest[: len(mark)]) for mark in (*_ENDS, _MESSAGE, "to=")):
            is_whole = any(rest.startswith(mark) for mark in (*_ENDS, _MESSAGE, "to="))
            self._step = self._read_header if is_whole else self._step
            return position if is_whole else self._hold(text, position)
        self._begin_message(ContentDelta)
        return position

    def _read_header(self, text: str, position: int) -> int:
        end = text.find(_MESSAGE, position)
        if end < 0 and len(text) - position > _MAX_HEADER_CHARACTERS:  # it is none
            self._begin_message(ContentDelta)
            return position + 1
        if end < 0:
            return self._hold(text, position)
        header = text[position:end]
        channel, recipient = _CHANNEL_NAME.search(header), _RECIPIENT.search(header)
        tool = recipient[1].removeprefix(_FUNCTIONS) if recipient else ""
        if tool in self._tool_names:
            self.callee, self.call_number = tool, self._num_calls + 1
            self.is_reasoning = False
            self._step = self._read_beginning_of_arguments
        elif recipient or (channel and channel[1] == "analysis"):
            self._begin_message(ReasoningDelta)
        else:
            self._begin_message(ContentDelta)
        return end + len(_MESSAGE)

    def _read_message(self, text: str, position: int) -> int:
        found = _END_OF_MESSAGE.search(text, position)
        if found is not None:
            self._put(text[position : found.start()])
            return self._end_message(found)
        num_held = max(num_begun(text[position:], mark) for mark in _ENDS)
        self._put(text[position : len(text) - num_held])
        return self._hold(text, len(text) - num_held) if num_held else len(text)

    def _end_message(self, found: re.Match[str]) -> int:
        self.is_reasoning = False
        self._step = self._read_between
        return found.start() if found[0] in (_START, _CHANNEL) else found.end()

    def _read_beginning_of_arguments(self, text: str, position: int) -> int:
        start = len(text) - len(text[position:].lstrip())
        self.begun = text[position:]
        if start == len(text):
            return self._hold(text, position)
        if text[start] != "{":
            self.callee = None
            self._begin_message(ReasoningDelta)
            return start
        self._deltas.append(ToolCallDelta(index=self._num_calls, name=self.callee))
        self._num_calls += 1
        self._step = self._read_arguments
        return start

    def _read_arguments(self, text: str, position: int) -> int:
        end = self._json.read(text, position)
        stop = len(text) if end < 0 else end
        self._deltas.append(ToolCallDelta(index=self._num_calls - 1, arguments=text[position:stop]))
        if end >= 0:
            self.callee = None
            self.is_over = self._num_calls == self._max_calls
            self._step = self._pass_over if self.is_over else self._read_call_end
        return stop

    def _read_call_end(self, text: str, position: int) -> int:
        """Pass over what follows arguments in their message."""
        found = _END_OF_MESSAGE.search(text, position)
        if found is not None:
            return self._end_message(found)
        return self._hold(text, max(position, len(text) - max(map(len, _ENDS))))

    def _pass_over(self, text: str, _: int) -> int:
        return len(text)
