"""`WaitingQueue`: the waiting requests, in the order of admission."""

from bisect import insort
from collections.abc import Callable, Iterator

from infer_engine.request import Request

Rank = Callable[[Request], tuple[int, int]]
"""Returns the rank of a request: the lowest goes first, and no two are equal."""


class WaitingQueue:
    """Requests that hold no memory: preempted ones first, then the others, each by `rank`."""

    __slots__ = ("_new", "_preempted", "_rank")

    def __init__(self, rank: Rank) -> None:
        """Order by `rank`, which must not change while a request waits."""
        self._rank = rank
        self._new: list[Request] = []
        self._preempted: list[Request] = []

    def __len__(self) -> int:
        """Return the number of waiting requests."""
        return len(self._new) + len(self._preempted)

    def __iter__(self) -> Iterator[Request]:
        """Yield the waiting requests, the next one first."""
        yield from self._preempted
        yield from self._new

    def add(self, request: Request) -> None:
        """Add a request that has not run."""
        insort(self._new, request, key=self._rank)

    def requeue(self, request: Request) -> None:
        """Add a preempted request, before all that have not run."""
        insort(self._preempted, request, key=self._rank)

    def first(self) -> Request:
        """Return the next request; the queue must not be empty."""
        return self._preempted[0] if self._preempted else self._new[0]

    def discard(self, request: Request) -> None:
        """Remove a request, if it is in the queue."""
        for queue in (self._preempted, self._new):
            if queue and queue[0] is request:
                del queue[0]
            elif request in queue:
                queue.remove(request)
