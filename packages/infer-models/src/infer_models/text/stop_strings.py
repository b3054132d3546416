"""Finds stop strings in text that arrives in pieces."""

from collections.abc import Sequence
from functools import lru_cache

_KEPT_LISTS = 8
"""Lists of stop strings whose links are kept: the sequences of one request, and of its next ones, share them."""


class StopStringMatcher:
    """Passes text on until a stop string is complete, and never passes on any part of that stop string.

    The stop string that is complete first wins, and of those complete at the same character the longest: so the result
    depends on the text alone, not on how it was cut into pieces. Each stop string is followed with the automaton of
    Knuth, Morris and Pratt (1977): the work per character grows neither with the text nor with the stop strings, and
    only those are followed that the text so far ends with a beginning of.
    """

    __slots__ = ("_held", "_match", "_open", "_patterns", "_starts")

    def __init__(self, stops: Sequence[str] = ()) -> None:
        """Look for any of `stops`.

        Raises:
            ValueError: one of them is empty.
        """
        if not all(stops):
            raise ValueError("`stop` holds an empty string, which is found everywhere; leave it out.")
        self._patterns, self._starts = _compile(tuple(stops)) if stops else ((), {})
        self._open: dict[int, int] = {}  # by stop string: how many of its characters the text so far ends with
        self._held = ""
        self._match: str | None = None

    def add(self, delta: str) -> tuple[str, str | None]:
        """Take the next piece of text; return the text that is safe to send, and the stop string that is complete.

        Text that may be the beginning of a stop string is held back. After a match nothing more is let through.
        """
        if self._match is not None:
            return "", self._match
        if not self._patterns:
            return delta, None
        text = self._held + delta
        for position, character in enumerate(delta, start=len(self._held) + 1):
            match = self._advance(character)
            if match is not None:
                self._held, self._match = "", match
                return text[: position - len(match)], match
        return self._hold_back(text), None

    def pass_over(self, delta: str) -> str:
        """Take text in which no stop string may end; return the part that is safe to send.

        A stop string that begins in it and ends in later text is found there, and held back until then.
        """
        text = self._held + delta
        for character in delta:
            self._advance(character)
        return self._hold_back(text)

    def finish(self) -> str:
        """Return the text that was held back: nothing more comes, so no stop string begins there."""
        held, self._held = self._held, ""
        self._open = {}
        return held

    def _hold_back(self, text: str) -> str:
        num_safe = len(text) - max(self._open.values(), default=0)
        self._held = text[num_safe:]
        return text[:num_safe]

    def _advance(self, character: str) -> str | None:
        """Follow every stop string over one character; return the longest that it completes."""
        starting = self._starts.get(character, ())
        if not self._open and not starting:  # most characters
            return None
        before, self._open = self._open, {}
        longest: str | None = None
        for index, matched in (*((i, 0) for i in starting if i not in before), *before.items()):
            stop, links = self._patterns[index]
            length = matched
            while length and stop[length] != character:
                length = links[length - 1]
            if stop[length] == character:
                length += 1
            if length == len(stop):
                longest = stop if longest is None or len(stop) > len(longest) else longest
                length = links[-1]
            if length:
                self._open[index] = length
        return longest


@lru_cache(maxsize=_KEPT_LISTS)
def _compile(
    stops: tuple[str, ...],
) -> tuple[tuple[tuple[str, tuple[int, ...]], ...], dict[str, tuple[int, ...]]]:
    """Return each of `stops` with its links, and which of them begin with a character."""
    starts: dict[str, tuple[int, ...]] = {}
    for index, stop in enumerate(stops):
        starts[stop[0]] = (*starts.get(stop[0], ()), index)
    return tuple((stop, _failure_links(stop)) for stop in stops), starts


def _failure_links(stop: str) -> tuple[int, ...]:
    """Return, for every prefix of `stop`, the length of its longest proper prefix that is also its suffix."""
    links = [0]
    for character in stop[1:]:
        length = links[-1]
        while length and stop[length] != character:
            length = links[length - 1]
        links.append(length + (stop[length] == character))
    return tuple(links)
