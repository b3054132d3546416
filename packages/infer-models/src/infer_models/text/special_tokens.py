"""Which special tokens of a rendered chat are the template's own. Knows text and special tokens; knows no template."""

import itertools
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from infer_models.text.chat_template import ChatTemplateError, Message, map_text

# Plane 15 and 16 are for private use: no template holds these characters, and what users hold of them is left out.
_PRIVATE_CHARACTERS = range(0xF0000, 0x110000)

_ROLE = re.compile(r"[\w .-]+")


@dataclass(frozen=True, slots=True, kw_only=True)
class SpecialToken:
    """A special token, and whether it swallows the white space on its left and right."""

    token_id: int
    content: str
    strips_left: bool
    strips_right: bool


class MessageMarks:
    """Marks the characters of messages that special tokens are made of, to tell them from the template's own.

    Each is replaced by a private character of its own: what still spells a special token after rendering was written by
    the template. A special token that has punctuation (`<|im_end|>`) is recognized by it, so that only punctuation is
    marked; white space and letters stay, and with them most of what templates do with their messages (trim, compare).
    """

    def __init__(self, special_tokens: Sequence[SpecialToken], messages: Sequence[Message]) -> None:
        """Choose characters that do not occur in `messages`."""
        used: set[str] = set()

        def note_characters(text: str) -> str:
            used.update(text)
            return text

        for message in messages:
            map_text(message, note_characters)
        free = (character for character in map(chr, _PRIVATE_CHARACTERS) if character not in used)
        telling = sorted(set().union(*(_telling_characters(special.content) for special in special_tokens)))
        self._marks = dict(zip(telling, itertools.islice(free, len(telling)), strict=True))
        self._to_marks = str.maketrans(self._marks)
        self._from_marks = str.maketrans({mark: character for character, mark in self._marks.items()})

    def mark(self, messages: Sequence[Message]) -> list[Message]:
        """Return `messages` with the telling characters replaced everywhere but in roles, which templates compare.

        Raises:
            ChatTemplateError: a role is no plain name, so that it could spell a special token.
        """
        marked: list[Message] = []
        for message in messages:
            role = message.get("role")
            if isinstance(role, str) and not _ROLE.fullmatch(role):
                raise ChatTemplateError(f"`role` is {role!r}; it must be a plain name such as `user`.")
            fields = map_text(message, lambda text: text.translate(self._to_marks))
            marked.append(fields if role is None else {**fields, "role": role})
        return marked

    def unmark(self, text: str) -> str:
        """Return `text` with the characters that `mark` replaced."""
        return text.translate(self._from_marks)


class SpecialTokenScanner:
    """Finds special tokens in text."""

    def __init__(self, special_tokens: Sequence[SpecialToken]) -> None:
        """Look for all of `special_tokens`; where several begin, the longest counts."""
        self._by_content: Mapping[str, SpecialToken] = {special.content: special for special in special_tokens}
        longest_first = sorted(self._by_content, key=len, reverse=True)
        self._pattern = re.compile("|".join(map(re.escape, longest_first)) or r"(?!)")

    def split(self, text: str) -> Iterator[str | SpecialToken]:
        """Yield the special tokens of `text` and, never empty, the text between them."""
        end = 0
        strips_right = False
        for match in itertools.chain(self._pattern.finditer(text), (None,)):
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


def _telling_characters(content: str) -> set[str]:
    visible = {character for character in content if not character.isspace()}
    return {character for character in visible if not character.isalnum()} or visible
