"""`ContinuousScheduler`: continuous batching with chunked prefill."""

from collections.abc import Callable, Iterator, Sequence

from infer_cache.paged_manager import PrefixHit
from infer_engine.request import Request, RequestState
from infer_engine.scheduling.base import BaseScheduler
from infer_engine.scheduling.kv_cache_manager import KVCacheManager
from infer_engine.scheduling.policies import Policy
from infer_engine.scheduling.prefill_share import PrefillShare
from infer_engine.scheduling.prefill_turns import Claim, PrefillTurns
from infer_engine.scheduling.running_batch import KVCacheTooSmallError
from infer_engine.scheduling.schedule import Schedule, SchedulerLimits, StepBudget

MAX_PROMPTS_IN_TURN = 8
"""Prompts that are admitted to take turns beside decodes, though not each step has tokens for all of them.

Further ones wait in the queue, where they hold no row and no blocks, and where one of a better priority passes them.
"""


class ContinuousScheduler(BaseScheduler):
    """Lets requests join and leave at every step; each prompt has its own progress.

    The KV cache must hold one request of maximum length. Then the oldest request can always grow, by preemption of the
    others, and every request ends.
    """

    def __init__(self, kv_cache_manager: KVCacheManager, limits: SchedulerLimits, policy: Policy) -> None:
        """Schedule within `limits`, in the order of `policy`."""
        super().__init__(kv_cache_manager, limits, waiting_rank=policy.waiting_rank, running_rank=policy.running_rank)
        self._policy = policy
        self._turns = PrefillTurns()
        self._share = _make_share(limits)
        self._num_steps = 0

    @property
    def passes(self) -> Sequence[Callable[[], Schedule]]:
        """One function, or two if the policy computes prompts in a pass of their own."""
        return (self._schedule_prompts, self._schedule_decodes) if self._policy.prefill_pass else (self._schedule_all,)

    def seconds_until_work(self) -> float | None:
        """Return 0.0 if there are requests, else None."""
        return 0.0 if self._batch.requests or self._waiting else None

    def _schedule_all(self) -> Schedule:
        """Schedule decodes first, then running prompts, then admissions.

        A step that preempts a request admits none: the preempted request is first in the queue, and there are not
        enough free blocks for it.
        """
        schedule, budget = self._begin()
        self._add_decodes(schedule, budget)
        if len(schedule.items) == self.num_running and not self._waiting:  # in most steps all requests decode
            schedule.decodes = [request for request, _ in schedule.items]
            return schedule
        if schedule.items and self._limit_prompts(budget, num_decodes=len(schedule.items)):
            self._add_prompts_in_turn(schedule, budget)
        else:
            self._add_prompts(schedule, budget)
        return schedule

    def _schedule_prompts(self) -> Schedule:
        schedule, budget = self._begin()
        self._add_prompts(schedule, budget)
        return schedule

    def _schedule_decodes(self) -> Schedule:
        schedule, budget = self._begin()
        self._add_decodes(schedule, budget)
        return schedule

    def _begin(self) -> tuple[Schedule, StepBudget]:
        self._num_steps += 1
        self._current = None
        return Schedule(), StepBudget(self._limits)

    def _add_decodes(self, schedule: Schedule, budget: StepBudget) -> None:
        # This loop runs for each decode of a step, and is most of the cost of scheduling.
        block_size, num_steps, most = self._kv_cache_manager.block_size, self._num_steps, budget.tokens
        decode = RequestState.DECODE
        decodes = [request for request in self._batch.requests if request.state is decode]
        is_limited = len(decodes) > most
        for request in self._policy.decode_order(decodes):
            if is_limited and len(schedule.items) >= most:
                break
            num_tokens = len(request.token_ids)
            if request.pending_row >= 0:
                if request.awaits_last_token:
                    continue
                num_tokens += 1
            if num_tokens > request.capacity or num_tokens % block_size == 0:
                self._current = request
                if request.state is not decode:  # preempted by a request before it
                    continue
                if num_tokens > request.capacity and not self._batch.extend_or_preempt(request, num_tokens, schedule):
                    continue
                if num_tokens % block_size == 0 and request.pending_row < 0:
                    self._batch.cache_blocks(request, num_tokens, schedule)
            elif schedule.preempted and request.state is not decode:
                continue
            request.last_step = num_steps
            schedule.items.append((request, 1))  # another list after a preemption
        budget.tokens -= len(schedule.items)
        self._current = None

    def _add_prompts(self, schedule: Schedule, budget: StepBudget) -> None:
        for request in self._prompts():
            if request.state is RequestState.PREFILL:  # not preempted by a prompt before it
                self._add_next_chunk(request, schedule, budget)
        if not schedule.preempted:
            self._admit(self._fitting(), schedule, budget)
        self._current = None

    def _add_prompts_in_turn(self, schedule: Schedule, budget: StepBudget) -> None:
        """Admit the next prompts, let all take turns, and admit more if tokens are left."""
        fitting = self._fitting()
        if not schedule.preempted:
            self._admit_for_turns(fitting, schedule)
        line = sorted(self._prompts(), key=self._policy.waiting_rank)
        most = budget.tokens
        num_tokens = [0] * len(line)
        for index in self._turns.order([self._claim(request) for request in line]):
            if line[index].state is RequestState.PREFILL:  # not preempted by a prompt that went before
                before = budget.tokens
                self._add_next_chunk(line[index], schedule, budget)
                num_tokens[index] = before - budget.tokens
        self._turns.settle(first=num_tokens[0] if line else 0, total=most - budget.tokens)
        if not schedule.preempted:
            self._admit(fitting, schedule, budget)
        self._current = None

    def _limit_prompts(self, budget: StepBudget, *, num_decodes: int) -> bool:
        """Lower the tokens left to what a pass with decodes may compute of prompts; return whether there is a limit."""
        share, most = self._share, self._limits.max_prefill_tokens_beside_decodes
        most = most if share is None else share.num_tokens(num_decodes)
        if most is None or self._limits.prefill_chunk_size is None:
            return False
        captured = self._limits.max_captured_tokens
        if captured is not None:
            most = min(most, max(captured - num_decodes, captured // 2))
        budget.tokens = min(budget.tokens, most)
        self._prefill_tokens_beside_decodes = most
        return True

    def _prompts(self) -> list[Request]:
        """Return the running requests whose prompt is not computed, in order of rank."""
        return [request for request in self._batch.requests if request.state is RequestState.PREFILL]

    def _claim(self, request: Request) -> Claim:
        """Return what a prompt asks for. One that was preempted in the midst of its answer goes before new ones."""
        num_tokens = 0 if request.num_completion_tokens else request.num_uncomputed_tokens
        return Claim(self._policy.running_rank(request)[0], num_tokens, self._batch.next_block(request))

    def _admit_for_turns(self, fitting: Iterator[tuple[Request, PrefixHit]], schedule: Schedule) -> None:
        """Admit requests until `MAX_PROMPTS_IN_TURN` go before the next one."""
        rank = self._policy.running_rank
        while self._waiting:
            last = rank(self._waiting.first())
            if sum(rank(request) < last for request in self._prompts()) >= MAX_PROMPTS_IN_TURN:
                return
            found = next(fitting, None)
            if found is None:
                return
            self._batch.admit(*found, schedule)
            self._waiting.discard(found[0])

    def _admit(self, fitting: Iterator[tuple[Request, PrefixHit]], schedule: Schedule, budget: StepBudget) -> None:
        for request, hit in fitting:
            if not budget.chunk_size(max(1, len(request.token_ids) - hit.num_tokens)):
                return
            self._batch.admit(request, hit, schedule)
            self._waiting.discard(request)
            self._add_chunk(request, schedule, budget)

    def _fitting(self) -> Iterator[tuple[Request, PrefixHit]]:
        """Yield the first waiting request and its cached prefix while its blocks fit; it must be admitted to go on."""
        admission = self._kv_cache_manager.budget(self._limits.kv_reserve)
        while self._waiting and self._batch.has_free_row:
            request = self._current = self._waiting.first()
            num_tokens = len(request.token_ids)
            hit = self._find_prefix(request)
            is_alone = not self._batch.requests
            if not admission.take(self._kv_cache_manager.costs(num_tokens, hit)) and not is_alone:
                return
            if not self._kv_cache_manager.fits(num_tokens, hit):
                if is_alone:
                    raise KVCacheTooSmallError(
                        f"request {request.request_id} is alone and its {num_tokens} tokens do not fit"
                    )
                return
            yield request, hit

    def _find_prefix(self, request: Request) -> PrefixHit:
        block_hashes: list[bytes] = []
        if request.block_hashes is not None and request.reads_cache:
            block_hashes = request.block_hashes.upto(request.token_ids, len(request.token_ids))
        return self._kv_cache_manager.find(block_hashes, len(request.token_ids))

    def _add_next_chunk(self, request: Request, schedule: Schedule, budget: StepBudget) -> None:
        """Add a chunk of an admitted prompt, after the blocks that others have computed for it."""
        self._current = request
        self._batch.reuse_blocks(request, schedule)
        self._add_chunk(request, schedule, budget)

    def _add_chunk(self, request: Request, schedule: Schedule, budget: StepBudget) -> None:
        num_tokens = budget.chunk_size(request.num_uncomputed_tokens)
        if not num_tokens:
            return
        start = request.num_computed_tokens
        end = self._kv_cache_manager.states.chunk_end(request.request_id, start, start + num_tokens)
        num_tokens = end - start
        if end > request.capacity and not self._batch.extend_or_preempt(request, end, schedule):
            return
        self._batch.cache_blocks(request, end, schedule)
        request.last_step = self._num_steps
        schedule.items.append((request, num_tokens))
        budget.take_chunk(num_tokens)


def _make_share(limits: SchedulerLimits) -> PrefillShare | None:
    """Return what decides how many prompt tokens a pass with decodes computes; None if `limits` do."""
    if limits.max_decode_slowdown is None or limits.prefill_chunk_size is None:
        return None
    most = limits.max_prefill_tokens_beside_decodes or limits.prefill_chunk_size
    return PrefillShare(max_slowdown=limits.max_decode_slowdown, most=most)
