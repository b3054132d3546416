"""`MarkedText`: a text with marks in which a chat template finds the words without them."""

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Self, SupportsIndex

_PLACE = re.compile(r"\\u0000(\d+)\\u0000")


class MarkedText(str):
    """A text some of whose characters are replaced by marks, of the same length as its words.

    What a template asks of it (`in`, `==`, `startswith`, `split`, ...) is asked of the words; what it takes out of it
    or makes of it has the marks. An operation that is not here gives the bare text with its marks.
    """

    __slots__ = ("_to_marks", "_words")
    _words: str
    _to_marks: Mapping[int, str]

    def __new__(cls, text: str, words: str, to_marks: Mapping[int, str]) -> Self:
        """Make a text of `words` that reads `text`, whose marks are in `to_marks` by the characters' numbers."""
        assert len(text) == len(words)
        made = super().__new__(cls, text)
        made._words = words
        made._to_marks = to_marks
        return made

    def __str__(self) -> str:
        return self

    def __repr__(self) -> str:
        return repr(self._words).translate(self._to_marks)

    def __getitem__(self, key: SupportsIndex | slice) -> str:
        return MarkedText(super().__getitem__(key), self._words[key], self._to_marks)

    def __iter__(self) -> Iterator[str]:
        return (self[index] for index in range(len(self)))

    def __add__(self, other: str) -> str:
        return joined((self, other))

    def __radd__(self, other: str) -> str:
        return joined((other, self))

    def strip(self, chars: str | None = None, /) -> str:
        return self._part(self._words.strip(_words_of(chars)), len(self) - len(self._words.lstrip(_words_of(chars))))

    def lstrip(self, chars: str | None = None, /) -> str:
        return self[len(self) - len(self._words.lstrip(_words_of(chars))) :]

    def rstrip(self, chars: str | None = None, /) -> str:
        return self[: len(self._words.rstrip(_words_of(chars)))]

    def removeprefix(self, prefix: str, /) -> str:
        return self[len(self) - len(self._words.removeprefix(_words_of(prefix))) :]

    def removesuffix(self, suffix: str, /) -> str:
        return self[: len(self._words.removesuffix(_words_of(suffix)))]

    def split(self, sep: str | None = None, maxsplit: SupportsIndex = -1) -> list[str]:
        return self._parts(self._words.split(_words_of(sep), maxsplit), sep)

    def rsplit(self, sep: str | None = None, maxsplit: SupportsIndex = -1) -> list[str]:
        return self._parts(self._words.rsplit(_words_of(sep), maxsplit), sep)

    def partition(self, sep: str, /) -> tuple[str, str, str]:
        before, found, after = self._parts(self._words.partition(_words_of(sep)), "")
        return before, found, after

    def rpartition(self, sep: str, /) -> tuple[str, str, str]:
        before, found, after = self._parts(self._words.rpartition(_words_of(sep)), "")
        return before, found, after

    def splitlines(self, keepends: bool = False) -> list[str]:  # noqa: FBT001, FBT002 - as `str` has it
        lines = self._parts(self._words.splitlines(keepends=True), "")
        return [line[: len(words)] for line, words in zip(lines, self._words.splitlines(keepends), strict=True)]

    def replace(self, old: str, new: str, count: SupportsIndex = -1, /) -> str:
        if not old:
            return self._like(self._words.replace(_words_of(old), _words_of(new), count))
        return joined_with(new, self.split(old, count))

    def join(self, iterable: Iterable[str], /) -> str:
        return joined_with(self, iterable)

    def as_json(self, *, ensure_ascii: bool) -> str:
        """Return the JSON text of the words without its quotes; what the marks stand for is escaped and marked."""
        words = json.dumps(self._words, ensure_ascii=ensure_ascii)[1:-1]
        if self._words.translate(self._to_marks) == str.__str__(self):  # nothing in it is the template's own
            return MarkedText(words.translate(self._to_marks), words, self._to_marks)
        each = (json.dumps(word, ensure_ascii=ensure_ascii)[1:-1] for word in self._words)
        pairs = zip(str.__iter__(self), self._words, each, strict=True)
        text = "".join(part if char == word else part.translate(self._to_marks) for char, word, part in pairs)
        return MarkedText(text, words, self._to_marks)

    def _part(self, words: str, start: int) -> str:
        return self[start : start + len(words)]

    def _parts(self, words: Iterable[str], separator: str | None) -> list[str]:
        """Return the parts that read `words`, which follow each other with `separator` (None: blanks) in between."""
        parts: list[str] = []
        place = 0
        for each in words:
            start = self._words.index(each, place) if separator is None else place
            parts.append(self._part(each, start))
            place = start + len(each) + len(separator or "")
        return parts

    def _like(self, words: str) -> str:
        """Return `words` with marks in the places of this text's, or everywhere if it is of another length."""
        marked = words.translate(self._to_marks)
        if len(words) == len(self):
            triples = zip(str.__iter__(self), self._words, words, marked, strict=True)
            marked = "".join(word if char == own else mark for char, own, word, mark in triples)
        return MarkedText(marked, words, self._to_marks)


def joined(parts: Iterable[str]) -> str:
    """Return one text of `parts`; where one of them has marks, the whole is a text with marks."""
    texts = list(parts)
    whole = "".join(texts)
    marks = next((each._to_marks for each in texts if isinstance(each, MarkedText)), None)  # noqa: SLF001 - of this module
    return whole if marks is None else MarkedText(whole, "".join(map(_words_of, texts)), marks)


def joined_with(separator: str, texts: Iterable[str]) -> str:
    """Return `texts` with `separator` between them, as `joined` does."""
    return joined([part for text in texts for part in (separator, text)][1:])


def to_json(value: object, *, sort_keys: bool, ensure_ascii: bool, **layout: Any) -> str:
    """Return `value` as JSON; texts with marks in it are written as their words are, with marks."""
    texts: list[MarkedText] = []
    placed = _with_places(value, texts, sort_keys=sort_keys)
    written = json.dumps(placed, sort_keys=sort_keys and not texts, ensure_ascii=ensure_ascii, **layout)
    if not texts:
        return written
    pieces = _PLACE.split(written)
    pieces[1::2] = [texts[int(index)].as_json(ensure_ascii=ensure_ascii) for index in pieces[1::2]]
    return joined(pieces)


def _with_places(value: object, texts: list[MarkedText], *, sort_keys: bool) -> Any:
    """Return a copy of `value` with the place in `texts` for each text with marks."""
    if isinstance(value, MarkedText):
        texts.append(value)
        return f"\0{len(texts) - 1}\0"
    if isinstance(value, Mapping):
        items = sorted(value.items()) if sort_keys else value.items()
        return {
            _with_places(key, texts, sort_keys=sort_keys): _with_places(each, texts, sort_keys=sort_keys)
            for key, each in items
        }
    if isinstance(value, list | tuple):
        return [_with_places(each, texts, sort_keys=sort_keys) for each in value]
    return value


def _words_of(value: Any) -> Any:
    if isinstance(value, tuple):
        return tuple(map(_words_of, value))
    return value._words if isinstance(value, MarkedText) else value  # noqa: SLF001 - of this module


def _asked_of_words(name: str) -> Callable[..., Any]:
    ask = getattr(str, name)

    def method(self: MarkedText, *arguments: Any) -> Any:
        return ask(self._words, *map(_words_of, arguments))

    return method


def _in_other_letters(name: str) -> Callable[[MarkedText], str]:
    change = getattr(str, name)
    return lambda self: self._like(change(self._words))


for _name in (
    *("__contains__", "__eq__", "__ne__", "__lt__", "__le__", "__gt__", "__ge__", "__hash__"),
    *("startswith", "endswith", "find", "rfind", "index", "rindex", "count"),
    *("isalnum", "isalpha", "isascii", "isdecimal", "isdigit", "isidentifier", "islower", "isnumeric", "isupper"),
):
    setattr(MarkedText, _name, _asked_of_words(_name))
for _name in ("upper", "lower", "title", "capitalize", "swapcase", "casefold"):
    setattr(MarkedText, _name, _in_other_letters(_name))
