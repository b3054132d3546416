"""Finds stop strings in text that arrives in pieces."""

from collections.abc import Sequence


class StopStringMatcher:
    """Passes text on until a stop string is complete, and never passes on any part of that stop string.

    The stop string that is complete first wins, and of those complete at the same character the longest: so the result
    depends on the text alone, not on how it was cut into pieces. Each stop string is followed with the automaton of
    Knuth, Morris and Pratt (1977): the work per character grows neither with the text nor with the stop strings.
    """

    __slots__ = ("_held", "_matched", "_patterns", "_progress")

    def __init__(self, stops: Sequence[str] = ()) -> None:
        """Look for any of `stops`.

        Raises:
            ValueError: one of them is empty.
        """
        if not all(stops):
            raise ValueError("`stop` holds an empty string, which is found everywhere; leave it out.")
        self._patterns = [(stop, _failure_links(stop)) for stop in stops]
        self._progress = [0] * len(stops)  # characters of each stop string that the text so far ends with
        self._held = ""
        self._matched = False

    def add(self, delta: str) -> tuple[str, bool]:
        """Take the next piece of text; return the text that is safe to send, and whether a stop string is complete.

        Text that may be the beginning of a stop string is held back. After a match nothing more is let through.
        """
        if self._matched:
            return "", True
        if not self._patterns:
            return delta, False
        text = self._held + delta
        for position, character in enumerate(delta, start=len(self._held) + 1):
            longest_match = self._advance(character)
            if longest_match:
                self._held, self._matched = "", True
                return text[: position - longest_match], True
        num_safe = len(text) - max(self._progress)
        self._held = text[num_safe:]
        return text[:num_safe], False

    def pass_over(self, delta: str) -> str:
        """Take text in which no stop string may end; return what is safe to send.

        A stop string that begins in it and ends in later text is found there, and held back until then.
        """
        text = self._held + delta
        for character in delta:
            self._advance(character)
        num_safe = len(text) - max(self._progress, default=0)
        self._held = text[num_safe:]
        return text[:num_safe]

    def finish(self) -> str:
        """Return the text that was held back: nothing more comes, so no stop string begins there."""
        held, self._held = self._held, ""
        self._progress = [0] * len(self._patterns)
        return held

    def _advance(self, character: str) -> int:
        """Follow every stop string over one character; return the length of the longest that it completes, or 0."""
        longest_match = 0
        for index, (stop, links) in enumerate(self._patterns):
            matched = self._progress[index]
            while matched and stop[matched] != character:
                matched = links[matched - 1]
            if stop[matched] == character:
                matched += 1
            if matched == len(stop):
                longest_match = max(longest_match, matched)
                matched = links[-1]
            self._progress[index] = matched
        return longest_match


def _failure_links(stop: str) -> list[int]:
    """Return, for every prefix of `stop`, the length of its longest proper prefix that is also its suffix."""
    links = [0]
    for character in stop[1:]:
        length = links[-1]
        while length and stop[length] != character:
            length = links[length - 1]
        links.append(length + (stop[length] == character))
    return links
