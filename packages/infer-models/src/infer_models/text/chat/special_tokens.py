"""Tells the control tokens that a chat template wrote from those that messages spell out."""

import itertools
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from infer_models.text.chat.templates.marked_text import MarkedText
from infer_models.text.chat.templates.template import ChatTemplateError, Message, map_text
from infer_models.text.slicing import SLICE_LENGTH, change_in_slices, slices

# Rare letters, which Python prints in mappings as they are, unlike those for private use. What messages hold of them is
# left out; should they hold all, there are the planes 15 and 16, for private use.
_MARKS = (range(0x20000, 0x2A6DF), range(0xF0000, 0x110000))

_LETTERS_THAT_BECOME_ASCII = (
    "\xdf\u0130\u0131\u0149\u017f\u01f0\u1e96\u1e97\u1e98\u1e99\u1e9a\u1e9e\u212a"
    "\ufb00\ufb01\ufb02\ufb03\ufb04\ufb05\ufb06"
)

_ROLE = re.compile(r"[\w .-]+")
_ALWAYS_CONTROL = re.compile(r"<([|\N{FULLWIDTH VERTICAL LINE}]).+\1>")


@dataclass(frozen=True, slots=True, kw_only=True)
class SpecialToken:
    """A special token, and whether it swallows the white space on its left and right."""

    token_id: int
    content: str
    strips_left: bool
    strips_right: bool


class MessageMarks:
    """Marks the characters of messages and tools that special tokens are made of, to tell them from the template's own.

    Each is replaced by a rare character of its own: special tokens that are there after rendering were written by the
    template. White space stays, so templates can still trim, test and measure their messages.
    """

    def __init__(self, characters: Collection[str], values: Iterable[object]) -> None:
        """Choose characters that do not occur in `values` to stand for `characters`.

        Raises:
            ChatTemplateError: there are too few characters that do not occur in `values`.
        """
        used: set[str] = set()

        def note_characters(text: str) -> str:
            if not text.isascii():
                for piece in slices(text):
                    used.update(piece)
            return text

        for value in values:
            map_text(value, note_characters)
        free = (character for character in map(chr, itertools.chain(*_MARKS)) if character not in used)
        marks = dict(zip(characters, free, strict=False))
        if len(marks) < len(characters):
            raise ChatTemplateError("the messages hold all of Unicode's private characters; leave some out.")
        self._to_marks = str.maketrans(marks)
        self._from_marks = str.maketrans({mark: character for character, mark in marks.items()})

    def mark(self, messages: Sequence[Message]) -> list[Message]:
        """Return `messages` with the characters replaced everywhere but in roles, which templates compare.

        Raises:
            ChatTemplateError: a role is no plain name, so that it could spell a special token.
        """
        marked: list[Message] = []
        for message in messages:
            role = message.get("role")
            if isinstance(role, str) and not _ROLE.fullmatch(role):
                raise ChatTemplateError(f"`role` is {role!r}; it must be a plain name such as `user`.")
            fields = self.mark_value(message)
            marked.append(fields if role is None else {**fields, "role": role})
        return marked

    def mark_value(self, value: object) -> Any:
        """Return a copy of JSON-like `value` with the characters replaced in all its texts."""
        return map_text(value, lambda text: _translate(text, self._to_marks))

    def unmark(self, text: str) -> str:
        """Return `text` with the characters that `mark` replaced."""
        return _translate(text, self._from_marks)

    def read(self, text: str) -> str:
        """Return a text with marks as templates shall get it, who look for words in it."""
        return MarkedText(text, self.unmark(text), self._to_marks)


class SpecialTokenScanner:
    """Finds special tokens in text.

    Attributes:
        can_overlap: a special token may begin within another one.
    """

    def __init__(self, special_tokens: Sequence[SpecialToken]) -> None:
        """Look for all of `special_tokens`; where several begin, the longest counts."""
        self._by_content: Mapping[str, SpecialToken] = {special.content: special for special in special_tokens}
        self._max_length = max(map(len, self._by_content), default=0)
        self.can_overlap = _can_overlap(self._by_content)
        self._pattern = re.compile(_longest_of(self._by_content) if self._by_content else r"(?!)")

    def split(self, text: str) -> Iterator[str | SpecialToken]:
        """Yield the special tokens of `text` and, never empty, the text between them."""
        end = 0
        strips_right = False
        for match in itertools.chain(self._matches(text), (None,)):
            special = self._by_content[match[0]] if match else None
            between = text[end : match.start()] if match else text[end:]
            if strips_right:
                between = between.lstrip()
            if special and special.strips_left:
                between = between.rstrip()
            if between:
                yield between
            if match and special:
                yield special
                end, strips_right = match.end(), special.strips_right

    def _matches(self, text: str) -> Iterator[re.Match[str]]:
        start = 0
        while start < len(text):
            end = start + SLICE_LENGTH
            # A special token that begins before `end` is seen whole, and so is any longer one in its place.
            match = self._pattern.search(text, start, end + self._max_length)
            if match and match.start() < end:
                yield match
                start = match.end()
            else:
                start = end


def is_always_control(content: str) -> bool:
    """Return whether an added token is a control token by its spelling, such as `<|fim_prefix|>`."""
    return _ALWAYS_CONTROL.fullmatch(content) is not None


def visible_characters(texts: Iterable[str]) -> list[str]:
    """Return all characters of `texts` but white space, and those that `upper` and `lower` turn into them."""
    found = {character for character in "".join(texts) if not character.isspace()}
    return sorted(found.union("".join(found).lower(), "".join(found).upper(), _LETTERS_THAT_BECOME_ASCII))


def _can_overlap(texts: Collection[str]) -> bool:
    beginnings = {text[:length] for text in texts for length in range(1, len(text))}
    return any(text[start:] in beginnings for text in texts for start in range(1, len(text)))


def _longest_of(texts: Collection[str]) -> str:
    """Return a pattern for the longest of `texts` that fits; common beginnings are compared once.

    The first and the last of a group in alphabetical order have the common beginning of the whole group.
    """
    by_first_character: dict[str, list[str]] = {}
    for text in filter(None, texts):
        by_first_character.setdefault(text[0], []).append(text)
    branches: list[str] = []
    for group in by_first_character.values():
        common = _common_beginning(min(group), max(group))
        branches.append(re.escape(common) + _longest_of([text[len(common) :] for text in group]))
    pattern = "|".join(branches)
    return f"(?:{pattern})?" if pattern and "" in texts else f"(?:{pattern})" if len(branches) > 1 else pattern


def _common_beginning(first: str, second: str) -> str:
    same = itertools.takewhile(lambda pair: pair[0] == pair[1], zip(first, second, strict=False))
    return "".join(character for character, _ in same)


def _translate(text: str, table: Mapping[int, str]) -> str:
    return change_in_slices(text, lambda piece: piece.translate(table))
