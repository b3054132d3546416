"""The waiting requests, in the order in which they are admitted. Knows an order; knows no memory."""

from bisect import insort
from collections.abc import Callable, Iterator

from infer_engine.core.request import Request

Rank = Callable[[Request], tuple[int, int]]
"""A request's place among others, the lower the better; no two requests have the same."""


class WaitingQueue:
    """Requests that hold no memory: those that have lost theirs first, then by `rank`."""

    __slots__ = ("_newcomers", "_rank", "_returned")

    def __init__(self, rank: Rank) -> None:
        """Order by `rank`, which must not change while a request waits."""
        self._rank = rank
        self._newcomers: list[Request] = []
        self._returned: list[Request] = []

    def __len__(self) -> int:
        """Return how many wait."""
        return len(self._newcomers) + len(self._returned)

    def __iter__(self) -> Iterator[Request]:
        """Yield those that wait, who is next first."""
        yield from self._returned
        yield from self._newcomers

    def add(self, request: Request) -> None:
        """Let a request wait for the first time."""
        insort(self._newcomers, request, key=self._rank)

    def put_back(self, request: Request) -> None:
        """Let a request wait that was running: before all that have not."""
        insort(self._returned, request, key=self._rank)

    def first(self) -> Request:
        """Return who is next; somebody must be waiting."""
        return self._returned[0] if self._returned else self._newcomers[0]

    def discard(self, request: Request) -> None:
        """Take a request out, if it is here."""
        for line in (self._returned, self._newcomers):
            if line and line[0] is request:
                del line[0]
            elif request in line:
                line.remove(request)
