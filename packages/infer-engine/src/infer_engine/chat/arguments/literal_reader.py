"""`LiteralReader`: makes a JSON object of arguments that are literals of another language, as they arrive.

Texts are passed on while they are written, and each bracket as it comes; of a number or a constant the end is waited
for. What a model writes beside the rules is passed over, so that the result stays JSON: brackets close those that are
open, words that are nothing else are texts.
"""

import ast
import json
import re
from collections import Counter
from typing import NamedTuple

from infer_engine.chat.arguments.step_reader import Put, StepReader
from infer_models.text import LiteralFormat

MAX_NAME_CHARACTERS = 256

_BLANKS = re.compile(r"[\s,]*")
_NAME_END = re.compile(r"[\s:=,(){}\[\]\"'<>]")
_RAW_NAME_END = re.compile(r"[:=,(){}\[\]\"'<>]")
_WORD_END = re.compile(r"[,)\]}]")
_CLOSERS = {"(": ")", "[": "]", "{": "}"}
_CONSTANTS = {"true": "true", "false": "false", "none": "null", "null": "null", "": "null"}
_NUMBER = re.compile(r"-?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][+-]?[0-9]+)?")
_ESCAPES = {"a": "\a", "b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t", "v": "\v", "\n": ""}
_IN_TEXT = {mark: re.compile(rf"{mark}|\\") for mark in ("'", '"', "'''", '"""')}
_NUM_DIGITS = {"x": 2, "u": 4, "U": 8}
_OCTAL = re.compile("[0-7]{1,3}")
_HEXADECIMAL = re.compile("[0-9a-fA-F]+")


class _Open(NamedTuple):
    """A bracket that is open: what closes it, and what does in JSON."""

    closer: str
    json: str


class LiteralReader(StepReader):
    """Reads the arguments of one call after another."""

    __slots__ = (
        "_bare_name_end",
        "_end",
        "_has_member",
        "_is_raw",
        "_name",
        "_num_open",
        "_open",
        "_quote",
        "_raw_quote",
        "_word",
    )

    def __init__(self, literal_format: LiteralFormat) -> None:
        """Read up to the end of the arguments."""
        self._end = literal_format.end
        self._raw_quote = literal_format.quote
        self._bare_name_end = _RAW_NAME_END if literal_format.quote else _NAME_END
        self.begin("")

    def begin(self, _tool_name: str) -> None:
        """Begin with the arguments of a call."""
        self._open = [_Open(self._end, "}")]
        self._num_open = Counter((self._end,))
        self._has_member = False  # of the innermost bracket
        self._name: list[str] | None = None  # of a member whose name is being read
        self._word: list[str] = []
        self._quote = ""
        self._is_raw = False
        self._start(self._read_item)

    def _read_item(self, text: str, position: int, put: Put) -> tuple[int, bool]:
        """Read up to the next member or element, or over the bracket that closes these."""
        found = _BLANKS.match(text, position)
        assert found is not None
        position = found.end()
        if position == len(text):
            return position, False
        if text[position] in ")]}":
            self._close(text[position], put)
            return position + 1, True
        if self._open[-1].json == "]":
            self._step = self._read_value
            put(", " if self._has_member else "[")
            self._has_member = True
            return position, True
        self._name = []
        self._step = self._read_name
        return position, True

    def _close(self, bracket: str, put: Put) -> None:
        """Close the innermost open bracket of this kind, and those within it; where there is none, nothing happens."""
        if not self._num_open[bracket]:
            return
        while True:
            closed = self._open.pop()
            self._num_open[closed.closer] -= 1
            put(closed.json if self._has_member else {"]": "[]", "}": "{}"}[closed.json])
            self._has_member = True
            if closed.closer == bracket:
                break
        self._is_over = not self._open

    def _read_name(self, text: str, position: int, _: Put) -> tuple[int, bool]:
        """Read the name of a member; what is none is passed over."""
        quote = self._quote_at(text, position)
        if quote is None:
            return position, False
        assert self._name is not None
        if quote:
            self._name.append("")  # it is one, however short
            self._begin_text(quote)
            return position + len(quote), True
        found = self._bare_name_end.search(text, position, position + MAX_NAME_CHARACTERS)
        if found is None and len(text) - position < MAX_NAME_CHARACTERS:
            return position, False
        end = position + MAX_NAME_CHARACTERS if found is None else found.start()
        if end > position:
            self._name.append(text[position:end].rstrip())
        self._step = self._read_name_end
        return end, True

    def _read_name_end(self, text: str, position: int, put: Put) -> tuple[int, bool]:
        """Read what comes between a name and a value; without it, the name was none."""
        while position < len(text) and text[position].isspace():
            position += 1
        if position == len(text):
            return position, False
        name, self._name = self._name, None
        if text[position] not in ":=" or not name:
            self._step = self._read_rest
            return position + (text[position] in ":="), True
        put((", " if self._has_member else "{") + json.dumps("".join(name), ensure_ascii=False) + ": ")
        self._has_member = True
        self._step = self._read_value
        return position + 1, True

    def _read_value(self, text: str, position: int, put: Put) -> tuple[int, bool]:
        while position < len(text) and text[position].isspace():
            position += 1
        quote = self._quote_at(text, position)
        if quote is None:
            return position, False
        if quote:
            put('"')
            self._begin_text(quote)
            return position + len(quote), True
        if text[position] in _CLOSERS:
            bracket = text[position]
            self._open.append(_Open(_CLOSERS[bracket], "}" if bracket == "{" else "]"))
            self._num_open[_CLOSERS[bracket]] += 1
            self._has_member = False
            self._step = self._read_item
            return position + 1, True
        self._step = self._read_word
        return position, True

    def _quote_at(self, text: str, position: int) -> str | None:
        """Return the mark at `position` with which a text begins; empty: there is none; None: more has to be seen."""
        rest = text[position : position + max(3, len(self._raw_quote))]
        if self._raw_quote and rest.startswith(self._raw_quote):
            return self._raw_quote
        if not rest or (self._raw_quote and self._raw_quote.startswith(rest)):
            return None
        if rest[0] not in "\"'":
            return ""
        if rest[1:] in ("", rest[0]):  # the first of one, two or three
            return None
        return rest[0] * 3 if rest[:3] == rest[0] * 3 else rest[0]

    def _begin_text(self, quote: str) -> None:
        self._quote = quote
        self._is_raw = quote == self._raw_quote
        self._step = self._read_text

    def _read_text(self, text: str, position: int, put: Put) -> tuple[int, bool]:
        if self._is_raw:
            end = text.find(self._quote, position)
            stop = len(text) - _num_begun(text, position, self._quote) if end < 0 else end
        else:
            found = _IN_TEXT[self._quote].search(text, position)
            end = -1 if found is None or found[0] == "\\" else found.start()
            if found is not None and end < 0:
                self._add(text[position : found.start()], put)
                return self._read_escape(text, found.start(), put)
            stop = len(text) - _num_begun(text, position, self._quote) if end < 0 else end
        self._add(text[position:stop], put)
        if end < 0:
            return stop, False
        if self._name is None:
            put('"')
            self._step = self._read_rest
        else:
            self._step = self._read_name_end
        return end + len(self._quote), True

    def _read_escape(self, text: str, position: int, put: Put) -> tuple[int, bool]:
        """Read what a backslash begins, by the rules of Python's string literals."""
        kind = text[position + 1 : position + 2]
        if not kind:
            return position, False
        if kind in _NUM_DIGITS or kind in "01234567":
            most = _NUM_DIGITS.get(kind, 3)
            start = position + (2 if kind in _NUM_DIGITS else 1)
            digits = (_HEXADECIMAL if kind in _NUM_DIGITS else _OCTAL).match(text, start, start + most)
            end = start if digits is None else digits.end()
            if end == len(text) and end - start < most:
                return position, False
            is_whole = digits is not None and (end - start == most or kind not in _NUM_DIGITS)
            code = int(digits[0], 16 if kind in _NUM_DIGITS else 8) if digits is not None and is_whole else -1
            if 0xD800 <= code < 0xE000 and self._name is None:  # half of a character, as JSON writes it
                put(f"\\u{code:04x}")
            else:
                self._add(chr(code) if 0 <= code <= 0x10FFFF else text[position:end], put)
            return end, True
        known = kind if kind in "\\\"'" else _ESCAPES.get(kind)
        self._add(f"\\{kind}" if known is None else known, put)
        return position + 2, True

    def _add(self, text: str, put: Put) -> None:
        if self._name is not None:
            self._name.append(text)
        elif text:
            put(json.dumps(text, ensure_ascii=False)[1:-1])

    def _read_word(self, text: str, position: int, put: Put) -> tuple[int, bool]:
        """Read what is neither a text nor in brackets."""
        found = _WORD_END.search(text, position)
        self._word.append(text[position : len(text) if found is None else found.start()])
        if found is None:
            return len(text), False
        put(_json_of("".join(self._word).strip()))
        self._word = []
        self._step = self._read_item
        return found.start(), True

    def _read_rest(self, text: str, position: int, _: Put) -> tuple[int, bool]:
        """Pass over what comes between a value and what ends it."""
        found = _WORD_END.search(text, position)
        if found is None:
            return len(text), False
        self._step = self._read_item
        return found.start(), True


def _json_of(word: str) -> str:
    """Return a number or a constant as JSON, and any other word as a text."""
    if (constant := _CONSTANTS.get(word.lower())) is not None:
        return constant
    if _NUMBER.fullmatch(word):
        return word
    try:
        return json.dumps(ast.literal_eval(word), allow_nan=False) if len(word) <= MAX_NAME_CHARACTERS else _text(word)
    except (ValueError, TypeError, SyntaxError, RecursionError, MemoryError):
        return _text(word)


def _text(word: str) -> str:
    return json.dumps(word, ensure_ascii=False)


def _num_begun(text: str, position: int, mark: str) -> int:
    """Return the most characters at the end of `text`, from `position` on, with which `mark` begins."""
    most = min(len(mark) - 1, len(text) - position)
    return next((length for length in range(most, 0, -1) if text.endswith(mark[:length])), 0)
