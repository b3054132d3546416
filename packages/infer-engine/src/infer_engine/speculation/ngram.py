"""`NgramProposer`: guesses that a sequence goes on as it did where its last tokens came before."""

from collections.abc import Sequence

SIZES = (3, 2)
"""Numbers of last tokens that are looked for, the longest first."""


class NgramProposer:
    """Proposes for one sequence, which grows. A token costs a few entries of a dictionary, however long the sequence."""

    __slots__ = ("_ends", "_num_indexed")

    def __init__(self) -> None:
        """Begin with an empty sequence."""
        self._ends: dict[tuple[int, ...], int] = {}  # where the latest of each group of tokens ends
        self._num_indexed = 0

    def propose(self, token_ids: Sequence[int], limit: int) -> list[int]:
        """Return up to `limit` tokens that may follow `token_ids`, which begin with those of the last call."""
        last = len(token_ids) - 1
        for end in range(self._num_indexed, last):  # but the last, which is looked for
            for size in SIZES:
                if end + 1 >= size:
                    self._ends[tuple(token_ids[end + 1 - size : end + 1])] = end
        self._num_indexed = max(self._num_indexed, last)
        for size in SIZES:
            if last + 1 >= size and (end := self._ends.get(tuple(token_ids[last + 1 - size : last + 1]))) is not None:
                return list(token_ids[end + 1 : end + 1 + limit])
        return []
