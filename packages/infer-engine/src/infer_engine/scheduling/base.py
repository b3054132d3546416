"""What every scheduler has: a queue and a running batch. Knows how requests come and go; knows no order of work."""

from collections.abc import Iterator

from infer_engine.core.request import Request, RequestState
from infer_engine.scheduling.kv_cache_manager import KVCacheManager
from infer_engine.scheduling.running_batch import RunningBatch
from infer_engine.scheduling.schedule import Schedule, SchedulerLimits
from infer_engine.scheduling.waiting_queue import Rank, WaitingQueue


class BaseScheduler:
    """The requests that wait and those that run. A scheduler adds who moves from the one to the other, and when."""

    def __init__(
        self, kv_cache_manager: KVCacheManager, limits: SchedulerLimits, *, waiting_rank: Rank, running_rank: Rank
    ) -> None:
        """Nobody is here; memory comes from `tables`."""
        self._kv_cache_manager = kv_cache_manager
        self._limits = limits
        self._waiting = WaitingQueue(waiting_rank)
        self._batch = RunningBatch(
            kv_cache_manager, max_batch_size=limits.max_batch_size, rank=running_rank, put_back=self._waiting.put_back
        )
        self._current: Request | None = None

    @property
    def num_waiting(self) -> int:
        """Requests in the queue, preempted ones included."""
        return len(self._waiting)

    @property
    def num_running(self) -> int:
        """Requests that hold memory."""
        return len(self._batch.requests)

    @property
    def current(self) -> Request | None:
        """Whom the scheduler was busy with when it raised an exception; None: with nobody."""
        return self._current

    def in_order(self) -> Iterator[Request]:
        """Yield those that run, in order of rank, then those that wait, in the order of the queue."""
        yield from self._batch.requests
        yield from self._waiting

    def add(self, request: Request) -> None:
        """Let a waiting request stand in line."""
        assert request.state is RequestState.WAITING
        self._waiting.add(request)

    def remove(self, request: Request, state: RequestState, *, num_kept_tokens: int) -> None:
        """Take out a request wherever it is and free its memory at once.

        Args:
            request: waiting or running.
            state: how it ended.
            num_kept_tokens: only blocks of its first so many tokens may be found by others from then on.
        """
        if request.row < 0:
            self._waiting.discard(request)
        self._batch.discard(request, num_kept_tokens=num_kept_tokens)
        request.state = state

    def withdraw(self, schedule: Schedule) -> list[tuple[Request, int]]:
        """Take note that a pass failed; return those of its items that can be tried again as they are."""
        return self._batch.withdraw(schedule)

    def start_over(self) -> None:
        """Put everybody back into the queue, all memory free: the way out of a schedule that failed half-way."""
        self._batch.put_all_back()
        self._current = None
