"""`StaticScheduler`: a batch forms and runs until all its requests have finished; then the next one forms."""

import time
from collections.abc import Callable, Sequence

from infer_engine.request import Request, RequestState
from infer_engine.scheduling.base import BaseScheduler
from infer_engine.scheduling.kv_cache_manager import KVCacheManager
from infer_engine.scheduling.policies import by_arrival
from infer_engine.scheduling.running_batch import KVCacheTooSmallError
from infer_engine.scheduling.schedule import Schedule, SchedulerLimits, StepBudget


class StaticScheduler(BaseScheduler):
    """Serves requests in order of arrival, one batch at a time.

    idle ──a request waits──> forming ──full, or waited long enough──> running ──all finished──> idle or forming
    """

    def __init__(
        self,
        kv_cache_manager: KVCacheManager,
        limits: SchedulerLimits,
        *,
        batch_wait_timeout_s: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Wait at most `batch_wait_timeout_s` seconds of `clock` for a batch to fill."""
        super().__init__(kv_cache_manager, limits, waiting_rank=by_arrival, running_rank=by_arrival)
        self._timeout_s = batch_wait_timeout_s
        self._clock = clock
        self._forming_since: float | None = None

    @property
    def passes(self) -> Sequence[Callable[[], Schedule]]:
        """One function: a step has one pass."""
        return (self._schedule,)

    def seconds_until_work(self) -> float | None:
        """Return 0.0 if a batch runs or is full, the wait in seconds if one is forming, None without requests."""
        if self._batch.requests:
            return 0.0
        if not self._waiting:
            return None
        if len(self._waiting) >= self._limits.max_batch_size:
            return 0.0
        since = self._clock() if self._forming_since is None else self._forming_since
        return max(0.0, since + self._timeout_s - self._clock())

    def add(self, request: Request) -> None:
        """Add a request to the queue; a batch starts to form if none runs."""
        super().add(request)
        self._start_forming()

    def remove(self, request: Request, state: RequestState, *, num_kept_tokens: int) -> None:
        """Remove a request; if none is left in the queue, the batch stops forming."""
        super().remove(request, state, num_kept_tokens=num_kept_tokens)
        if not self._waiting:
            self._forming_since = None
        self._start_forming()

    def preempt_all(self) -> None:
        """Move all running requests to the queue, where the next batch forms."""
        super().preempt_all()
        self._start_forming()

    def _start_forming(self) -> None:
        """Start the timer if requests wait and no batch runs."""
        if self._waiting and not self._batch.requests and self._forming_since is None:
            self._forming_since = self._clock()

    def _schedule(self) -> Schedule:
        self._current = None
        schedule, budget = Schedule(), StepBudget(self._limits)
        if self.seconds_until_work() != 0.0:
            return schedule
        if not self._batch.requests:
            self._start_batch(schedule)
        for request in self._batch.requests:
            self._current = request
            if request.state is RequestState.DECODE and budget.tokens > 0 and not request.awaits_last_token:
                schedule.items.append((request, 1))
                budget.tokens -= 1
        for request in self._batch.requests:
            self._current = request
            if request.state is RequestState.PREFILL:
                num_tokens = budget.chunk_size(request.num_uncomputed_tokens)
                if num_tokens:
                    schedule.items.append((request, num_tokens))
                    budget.take_chunk(num_tokens)
        self._current = None
        return schedule

    def _start_batch(self, schedule: Schedule) -> None:
        self._forming_since = None
        while self._waiting and self._batch.has_free_row:
            request = self._current = self._waiting.first()
            hit = self._kv_cache_manager.find((), len(request.token_ids))
            if not self._kv_cache_manager.fits(len(request.token_ids), hit):
                raise KVCacheTooSmallError(f"request {request.request_id} has a row but its tokens do not fit")
            self._batch.admit(request, hit, schedule)
            self._waiting.discard(request)
