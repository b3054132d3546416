"""`CallMarks`: finds the head of a tool call, up to its arguments, in text that may go on.

In formats whose calls are JSON, models write what means the same: other white space, `parameters` for `arguments` or
the other way round, a first member `"type": "function"`, a Markdown fence around the call, and the arguments before the
name (`ArgumentsFirst`). A name without quotes may be on a line of its own. Where a format has marks of its own, a fence
after other content is an example.
"""

import re
from collections.abc import Collection, Sequence
from typing import NamedTuple

from infer_models.text import ToolCallFormat

MAX_NAME_CHARACTERS = 128
MAX_BLANKS = 8
"""White space between two marks of a call."""

MORE = -1  # the text may still become a match
NO = -2


class Head(NamedTuple):
    """A place where a call may begin, as it was found.

    Attributes:
        end: where the arguments begin; `MORE` or `NO`.
        name: name of the tool; empty until the head is whole.
        mark_end: where the head is whole and the arguments must come; -1 before.
    """

    end: int
    name: str = ""
    mark_end: int = -1


_Marks = Sequence[Sequence[str]]
"""Ways to write one mark, each as pieces between which there may be white space."""

_JSON_PIECE = re.compile(r'"\w+"|[{}:,"]|[^{}:,"]+')
_NUMBER = re.compile(r":\d*$")
_ID = re.compile(rf"[\w-]{{0,{MAX_NAME_CHARACTERS}}}")
_KEYS = ('"arguments"', '"parameters"')
_NAME = '"name"'
FENCE = "```"
_FENCES: _Marks = [["```json"], [FENCE], ["```json", "["], [FENCE, "["]]
_FENCE_ENDS: _Marks = [["]", FENCE]]

_NO_HEAD = Head(NO)
_MORE_HEAD = Head(MORE)


class TextMarks:
    """Looks for any of several marks in text."""

    __slots__ = ("_begins", "_pattern", "_texts")

    def __init__(self, texts: Sequence[str]) -> None:
        """Look for `texts`."""
        self._texts = texts
        self._pattern = re.compile("|".join(map(re.escape, texts)) or "(?!)")
        self._begins = re.compile(f"[{re.escape(''.join(text[0] for text in texts))}]" if texts else "(?!)")

    def __deepcopy__(self, _: object) -> "TextMarks":
        """Return this one, which never changes, where a parser is copied."""
        return self

    def find(self, text: str, position: int) -> tuple[re.Match[str] | None, int]:
        """Return the first mark from `position` on and where it begins; None: where one may still begin, or the end."""
        if self._begins.search(text, position) is None:  # as in most text
            return None, len(text)
        found = self._pattern.search(text, position)
        if found is not None:
            return found, found.start()
        rest = text[position:]
        return None, len(text) - max(num_begun(rest, mark) for mark in self._texts)


class CallMarks:
    """The marks of a format, split at their white space, and the names of the tools that may be called."""

    __slots__ = (
        "_argument_marks",
        "_before_arguments",
        "_ends",
        "_name_end",
        "_names",
        "arguments_first",
        "begin",
        "call_end",
        "first_arguments_first",
        "first_begin",
        "format",
        "later_triggers",
        "separator",
        "triggers",
    )

    def __init__(self, call_format: ToolCallFormat, names: Collection[str] | None) -> None:
        """Find calls of `names`; None: of any name."""
        self.format = call_format
        begin = _pieces(call_format.call_begin.removesuffix(call_format.name_prefix))
        bare = [begin[1:]] if call_format.wrapper else []
        self.begin: _Marks = [begin, *bare, *_with_type(begin)]
        outer = [each.split() for each in (call_format.begin, *call_format.other_begins)]
        fenced = [[*fence, *each[each.index("{") :]] for fence in _FENCES for each in self.begin if _NAME in each]
        self.first_begin: _Marks = [*([*mark, *each] for mark in outer for each in self.begin), *fenced]
        self.arguments_first: _Marks = _with_arguments_first(self.begin)
        self.first_arguments_first: _Marks = _with_arguments_first(self.first_begin)
        own_triggers = call_format.triggers if call_format.is_anywhere else ()
        self.triggers = (*own_triggers, *([FENCE] if fenced else ()))
        self.later_triggers = own_triggers or self.triggers
        self._argument_marks: Sequence[str] = ("{",)
        if call_format.literals is not None:
            self._argument_marks = ("",)  # a name, or the end
        elif call_format.parameters is not None:
            self._argument_marks = (call_format.parameters.begin, call_format.arguments_end)
        self.call_end = call_format.call_end.removeprefix(call_format.arguments_end).split()
        self.separator = call_format.separator.split()
        self._ends: _Marks = [each.split() for each in (call_format.end, *call_format.other_ends) if each]
        pieces = _pieces(call_format.before_arguments)
        self._name_end = re.compile(re.escape(pieces[0][0]) if pieces else r"[\s<]")
        keys = _KEYS if set(pieces) & set(_KEYS) else ("",)
        self._before_arguments: _Marks = [[key if each in _KEYS else each for each in pieces] for key in keys]
        self._names = None if names is None else frozenset(names)

    def __deepcopy__(self, _: object) -> "CallMarks":
        """Return this one, which never changes, where a parser is copied."""
        return self

    def match_head(self, text: str, position: int, begin: _Marks) -> Head:
        """Return the head of the call at `position`."""
        start = match_one_of(text, position, begin)
        if start < 0:
            return Head(start)
        if not self.format.call_begin.endswith('"'):
            start = skip_blanks(text, start)
        after_prefix = match(text, start, [self.format.name_prefix])
        if after_prefix == MORE:
            return _MORE_HEAD
        start = max(start, after_prefix)
        found = self._name_end.search(text, start, start + MAX_NAME_CHARACTERS + 1)
        name_end = -1 if found is None else found.start()
        written = text[start : name_end if name_end >= 0 else start + MAX_NAME_CHARACTERS + 1]
        may_end_in_blanks = self.format.is_numbered or self.format.before_arguments[0].isspace()
        name = written.rstrip() if may_end_in_blanks else written
        name = _NUMBER.sub("", name) if self.format.is_numbered else name
        if name_end < 0:
            return _MORE_HEAD if len(written) <= MAX_NAME_CHARACTERS and self._may_become(name) else _NO_HEAD
        if not name or (self._names is not None and name not in self._names):
            return _NO_HEAD
        name_end = self._id_end(text, name_end)
        if name_end < 0:
            return Head(name_end)
        mark_end = match_one_of(text, name_end, self._before_arguments)
        if mark_end < 0:
            return Head(mark_end)
        end = skip_blanks(text, mark_end)
        begun = max(match(text, end, [mark]) for mark in self._argument_marks)
        if begun == MORE and text[name_end] in " \t" and mark_end == name_end:  # as in prose
            return _MORE_HEAD
        return _NO_HEAD if begun == NO else Head(MORE if begun == MORE else end, name, mark_end)

    def trigger_at(self, text: str, position: int) -> str:
        """Return the trigger at `position`; empty if there is none."""
        return next((each for each in self.triggers if text.startswith(each, position)), "")

    def match_call_end(self, text: str, position: int) -> int:
        """Return where the mark behind a call ends, of which models leave parts out; `MORE` if it may go on."""
        return match_any_of(text, position, self.call_end)

    def match_end(self, text: str, position: int, *, is_fenced: bool) -> int:
        """Return where the mark behind all calls ends, of which models leave parts out; `NO` if there is none."""
        ends = [match_any_of(text, position, each) for each in (*self._ends, *(_FENCE_ENDS if is_fenced else ()))]
        if MORE in ends:
            return MORE
        end = max(ends, default=position)
        return end if end > position else NO

    def _id_end(self, text: str, position: int) -> int:
        """Return where the id of a call ends, if there is one at `position`; `MORE` if it may go on."""
        mark = self.format.id_mark
        start = match(text, position, [mark]) if mark else NO
        if start == NO:
            return position
        found = _ID.match(text, start) if start >= 0 else None
        if found is None:
            return MORE
        return MORE if found.end() == len(text) and len(found[0]) < MAX_NAME_CHARACTERS else found.end()

    def _may_become(self, name: str) -> bool:
        """Whether `name` may be the beginning of a tool's."""
        return self._names is None or any(each.startswith(name) for each in self._names)


def _pieces(mark: str) -> list[str]:
    """Return the pieces of a mark; where it is JSON, they are JSON's tokens."""
    return [piece for part in mark.split() for piece in (_JSON_PIECE.findall(part) if '"' in part else [part])]


def _with_type(begin: list[str]) -> _Marks:
    """Return the way to write `begin` in which the call says that it is one of a function."""
    if _NAME not in begin:
        return []
    name = begin.index(_NAME)
    return [[*begin[:name], '"type"', ":", '"function"', ",", *begin[name:]]]


def _with_arguments_first(begins: _Marks) -> _Marks:
    """Return the ways to write `begins` in which arguments come before the name."""
    return [[*each[: each.index(_NAME)], key, ":"] for each in begins if _NAME in each for key in _KEYS]


def match_one_of(text: str, position: int, marks: _Marks) -> int:
    """Return where the first of `marks` that is there ends; `MORE` if one may still come."""
    return max((match(text, position, pieces) for pieces in marks), default=NO)


def match(text: str, position: int, pieces: Sequence[str]) -> int:
    """Return where `pieces`, with little or no white space between them, end if they begin at `position`."""
    for index, piece in enumerate(pieces):
        if index:
            position = skip_blanks(text, position)
        if not text.startswith(piece, position):
            is_begun = piece.startswith(text[position : position + len(piece)])
            return MORE if is_begun else NO
        position += len(piece)
    return position


def match_any_of(text: str, position: int, pieces: Sequence[str]) -> int:
    """Return where those of `pieces` that are there, in order, end; models leave some out."""
    for piece in pieces:
        start = skip_blanks(text, position)
        if text.startswith(piece, start):
            position = start + len(piece)
        elif piece.startswith(text[start : start + len(piece)]):
            return MORE
    return position


def skip_blanks(text: str, position: int) -> int:
    """Return where the white space at `position` ends, or the most of it that is looked at."""
    end = min(len(text), position + MAX_BLANKS)
    while position < end and text[position].isspace():
        position += 1
    return position


def num_begun(text: str, marker: str) -> int:
    """Return the most characters at the end of `text` with which `marker` begins, but is not complete."""
    position = text.find(marker[0], max(0, len(text) - len(marker) + 1))
    while position >= 0:
        if marker.startswith(text[position:]):
            return len(text) - position
        position = text.find(marker[0], position + 1)
    return 0


def selection_of(tool_name: str) -> str:
    """Return the text with which the grammar of all tools' arguments begins for one; no other's begins with it."""
    return f"{tool_name} "
