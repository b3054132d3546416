"""`NgramProposer`: drafts by prompt lookup: a sequence goes on as it did where its last tokens came before."""

from collections.abc import Sequence

from infer_engine.speculation.proposals import Proposal

_MOST_INDEXED = 1_024
"""Most tokens that one call takes into account, in about half a millisecond: no step waits for a long prompt."""


class NgramProposer:
    """Proposes for one sequence, which grows. A token costs a few entries of a dictionary, whatever the length."""

    __slots__ = ("_ends", "_num_indexed", "_sizes")

    def __init__(self, *, shortest: int = 2, longest: int = 3) -> None:
        """Look for as many last tokens as `longest`, then fewer, down to `shortest`."""
        self._sizes = range(longest, shortest - 1, -1)
        self._ends: dict[tuple[int, ...], int] = {}  # where the latest of each group of tokens ends
        self._num_indexed = 0

    def propose(self, token_ids: Sequence[int], limit: int) -> Proposal:
        """Return up to `limit` tokens that may follow `token_ids`, which begin with those of the last call."""
        last = len(token_ids) - 1
        num_indexed = min(last, self._num_indexed + _MOST_INDEXED)
        for end in range(self._num_indexed, num_indexed):  # at most all but the last, which is looked for
            for size in self._sizes:
                if end + 1 >= size:
                    self._ends[tuple(token_ids[end + 1 - size : end + 1])] = end
        self._num_indexed = num_indexed
        for size in self._sizes:
            if last + 1 >= size and (end := self._ends.get(tuple(token_ids[last + 1 - size :]), -1)) >= 0:
                return Proposal(list(token_ids[end + 1 : end + 1 + limit]))
        return Proposal([])
