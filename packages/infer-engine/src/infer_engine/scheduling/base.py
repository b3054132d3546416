"""`BaseScheduler`: the waiting queue and the running batch that every scheduler has."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence

from infer_cache.states.sequence_states import StateMove
from infer_engine.request import Request, RequestState
from infer_engine.scheduling.kv_cache_manager import KVCacheManager
from infer_engine.scheduling.prefill_share import PrefillShare
from infer_engine.scheduling.running_batch import RunningBatch
from infer_engine.scheduling.schedule import Schedule, SchedulerLimits
from infer_engine.scheduling.waiting_queue import Rank, WaitingQueue


class BaseScheduler(ABC):
    """Holds the waiting and the running requests. A subclass decides what each pass of a step computes."""

    def __init__(
        self, kv_cache_manager: KVCacheManager, limits: SchedulerLimits, *, waiting_rank: Rank, running_rank: Rank
    ) -> None:
        """Start without requests; memory comes from `kv_cache_manager`."""
        self._kv_cache_manager = kv_cache_manager
        self._limits = limits
        self._waiting = WaitingQueue(waiting_rank)
        self._batch = RunningBatch(
            kv_cache_manager, max_batch_size=limits.max_batch_size, rank=running_rank, requeue=self._waiting.requeue
        )
        self._current: Request | None = None
        self._share: PrefillShare | None = None
        self._prefill_tokens_beside_decodes = 0

    @property
    def num_waiting(self) -> int:
        """Requests in the queue, preempted ones included."""
        return len(self._waiting)

    @property
    def num_running(self) -> int:
        """Requests that hold memory."""
        return len(self._batch.requests)

    @property
    def prefill_share(self) -> PrefillShare | None:
        """Decides how many prompt tokens a pass with decodes computes, if that follows what passes take."""
        return self._share

    @property
    def prefill_tokens_beside_decodes(self) -> int:
        """Most prompt tokens of the latest pass that had a limit of them beside its decodes; 0 before the first."""
        return self._prefill_tokens_beside_decodes

    @property
    def current(self) -> Request | None:
        """The request that was being scheduled when an exception was raised, or None."""
        return self._current

    @property
    @abstractmethod
    def passes(self) -> Sequence[Callable[[], Schedule]]:
        """Functions that return the schedule of each pass; call one after the pass before it is computed."""

    @abstractmethod
    def seconds_until_work(self) -> float | None:
        """Return 0.0 if there is work, the wait in seconds if a batch is forming, None if there are no requests."""

    def requests(self) -> Iterator[Request]:
        """Yield the running requests in order of rank, then the waiting ones in the order of the queue."""
        yield from self._batch.requests
        yield from self._waiting

    def add(self, request: Request) -> None:
        """Add a request to the queue."""
        assert request.state is RequestState.WAITING
        self._waiting.add(request)

    def remove(self, request: Request, state: RequestState, *, num_kept_tokens: int) -> None:
        """Remove a request from the queue or the batch, and free its memory at once.

        Args:
            request: waiting or running.
            state: how it ended.
            num_kept_tokens: blocks after this many of its tokens are uncached.
        """
        if request.row < 0:
            self._waiting.discard(request)
        self._batch.discard(request, num_kept_tokens=num_kept_tokens)
        request.state = state
        request.has_ended = True

    def move_states(self, schedule: Schedule) -> None:
        """Give the items of `schedule`, which is complete, the slots of their states."""
        moves = self._kv_cache_manager.states.move(
            (request.request_id, request.num_computed_tokens, request.num_computed_tokens + count)
            for request, count in schedule.items
        )
        if moves:
            for request, _ in schedule.items:
                request.state_move = moves[request.request_id]

    def requeue_pending_readers(self, schedule: Schedule) -> list[tuple[Request, int]]:
        """Requeue the pending readers of a pass that failed; return the items that can be retried."""
        return self._batch.requeue_pending_readers(schedule)

    def cache_last_block(self, request: Request, schedule: Schedule) -> None:
        """Cache the block that the last known token fills, if it fills one and `schedule` computes that token."""
        self._batch.cache_last_block(request, schedule)

    def cache_computed_block(self, request: Request) -> None:
        """Cache the block that the last computed token fills, if it fills one; all computed tokens must be certain."""
        self._batch.cache_computed_block(request)

    def extend_for_drafts(self, request: Request, num_tokens: int, schedule: Schedule) -> int:
        """Allocate blocks for `num_tokens` tokens, if others need none of these; return how many have room."""
        return self._batch.extend_for_drafts(request, num_tokens, schedule)

    def move_drafts(self, request: Request, most: int) -> Sequence[StateMove]:
        """Return the slots of the states of up to `most` draft tokens of `request`, if others need none of these."""
        request.state_move, *of_drafts = self._kv_cache_manager.states.move_drafts(request.request_id, most)
        return of_drafts

    def release_drafts(self, request: Request) -> None:
        """Take back what draft tokens of `request` hold that it has not taken, once their step is computed."""
        self._kv_cache_manager.states.release_drafts(request.request_id, request.num_computed_tokens)

    def preempt_all(self) -> None:
        """Move all running requests to the queue and free all memory, after scheduling or a pass failed."""
        self._batch.preempt_all()
        self._current = None
