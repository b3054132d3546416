"""Continuous batching: who computes how many tokens in a step. Knows tokens and blocks; knows no tensors, no text."""

from collections.abc import Callable, Sequence

from infer_cache.paged_manager import PrefixHit
from infer_engine.core.request import Request, RequestState
from infer_engine.scheduling.base import BaseScheduler
from infer_engine.scheduling.kv_cache_manager import KVCacheManager
from infer_engine.scheduling.policies import Policy
from infer_engine.scheduling.running_batch import NoRoomError
from infer_engine.scheduling.schedule import Schedule, SchedulerLimits, StepBudget


class ContinuousScheduler(BaseScheduler):
    """Requests join and leave at every step; every prompt is at its own progress.

    The pool must hold one request of the longest length: then the one that came first of all can always grow, at the
    cost of the others, and every request ends.
    """

    def __init__(self, kv_cache_manager: KVCacheManager, limits: SchedulerLimits, policy: Policy) -> None:
        """Schedule within `limits` over the memory of `tables`, in the order of `policy`."""
        super().__init__(kv_cache_manager, limits, waiting_rank=policy.waiting_rank, running_rank=policy.running_rank)
        self._policy = policy
        self._num_steps = 0

    @property
    def passes(self) -> Sequence[Callable[[], Schedule]]:
        """What makes each pass's schedule, to be called once the pass before is computed."""
        return (self._schedule_prompts, self._schedule_decodes) if self._policy.prefill_pass else (self._schedule_all,)

    def seconds_until_work(self) -> float | None:
        """Return 0 where there is something to compute, None where nobody is here."""
        return 0.0 if self._batch.requests or self._waiting else None

    def _schedule_all(self) -> Schedule:
        """Decodes first, then prompts under way, then admissions.

        A step that had to preempt somebody admits nobody: what the victim at the head of the queue gave up is partly
        taken, and there was no other free block.
        """
        schedule, budget = self._begin()
        self._take_decodes(schedule, budget)
        self._take_prompts(schedule, budget)
        return schedule

    def _schedule_prompts(self) -> Schedule:
        schedule, budget = self._begin()
        self._take_prompts(schedule, budget)
        return schedule

    def _schedule_decodes(self) -> Schedule:
        schedule, budget = self._begin()
        self._take_decodes(schedule, budget)
        return schedule

    def _begin(self) -> tuple[Schedule, StepBudget]:
        self._num_steps += 1
        self._current = None
        return Schedule(), StepBudget(self._limits)

    def _take_decodes(self, schedule: Schedule, budget: StepBudget) -> None:
        # All decodes of a step: what this does for each of them is most of what scheduling costs.
        block_size = self._kv_cache_manager.block_size
        decodes = [request for request in self._batch.requests if request.state is RequestState.DECODE]
        for request in self._policy.decode_order(decodes):
            if budget.tokens == 0:
                return
            if request.state is not RequestState.DECODE:  # preempted for one before it
                continue
            self._current = request
            num_tokens = len(request.token_ids)
            if num_tokens > request.capacity and not self._batch.make_room(request, num_tokens, schedule):
                continue
            if num_tokens % block_size == 0:
                self._batch.cache_blocks(request, num_tokens, schedule)
            request.last_step = self._num_steps
            schedule.items.append((request, 1))
            budget.tokens -= 1
        self._current = None

    def _take_prompts(self, schedule: Schedule, budget: StepBudget) -> None:
        for request in tuple(self._batch.requests):
            if request.state is RequestState.PREFILL:
                self._current = request
                self._batch.reuse_blocks(request, schedule)
                self._take_chunk(request, schedule, budget)
        if not schedule.preempted:
            self._admit(schedule, budget)
        self._current = None

    def _admit(self, schedule: Schedule, budget: StepBudget) -> None:
        admission = self._kv_cache_manager.budget(self._limits.kv_reserve)
        while self._waiting and self._batch.has_free_row:
            request = self._current = self._waiting.first()
            num_tokens = len(request.token_ids)
            hit = self._find(request)
            is_alone = not self._batch.requests
            if not admission.take(self._kv_cache_manager.costs(num_tokens, hit)) and not is_alone:
                return
            if not self._kv_cache_manager.fits(num_tokens, hit):
                if is_alone:
                    raise NoRoomError(f"request {request.request_id} is alone and its {num_tokens} tokens do not fit")
                return
            if not budget.chunk_size(max(1, num_tokens - hit.num_tokens)):
                return
            self._batch.admit(request, hit, schedule)
            self._waiting.discard(request)
            self._take_chunk(request, schedule, budget)

    def _find(self, request: Request) -> PrefixHit:
        block_hashes: list[bytes] = []
        if request.block_hashes is not None and request.reads_cache:
            block_hashes = request.block_hashes.upto(request.token_ids, len(request.token_ids))
        return self._kv_cache_manager.find(block_hashes, len(request.token_ids))

    def _take_chunk(self, request: Request, schedule: Schedule, budget: StepBudget) -> None:
        num_tokens = budget.chunk_size(request.num_uncomputed_tokens)
        if not num_tokens:
            return
        end = request.num_computed_tokens + num_tokens
        if end > request.capacity and not self._batch.make_room(request, end, schedule):
            return
        self._batch.cache_blocks(request, end, schedule)
        request.last_step = self._num_steps
        schedule.items.append((request, num_tokens))
        budget.take_chunk(num_tokens)
