"""Scheduling policy: who computes how many tokens in a step. Knows tokens and blocks; knows no tensors, no text."""

from bisect import insort
from collections import deque
from dataclasses import dataclass, field

from infer_cache.tables import BlockTables
from infer_engine.request import Request, RequestState


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulerLimits:
    """What one step may hold.

    Attributes:
        max_batch_size: requests that hold memory at the same time.
        max_num_batched_tokens: tokens computed in one step.
        kv_reserve: share of the free KV tokens that admission leaves for running requests to grow into.
        prefill_chunk_size: tokens of one prompt in one step; None computes every prompt whole.
        max_prefill_chunks_per_step: prompts prefilled in one step; None for as many as fit.
    """

    max_batch_size: int
    max_num_batched_tokens: int
    kv_reserve: float = 0.2
    prefill_chunk_size: int | None = 512
    max_prefill_chunks_per_step: int | None = None


@dataclass(frozen=True, slots=True)
class TableEdit:
    """Write `block_ids` into row `row` of the block table from column `column` on."""

    row: int
    column: int
    block_ids: list[int]


@dataclass(slots=True)
class Schedule:
    """One step's work: a list of (request, how many of its next tokens), decodes first.

    Attributes:
        items: what to compute. A request's token is sampled when nothing of it is left to compute afterwards.
        table_edits: what changed in the block table since the step before.
        admitted: requests that left the queue in this step.
        preempted: requests that lost their memory in this step and are first in the queue again.
    """

    items: list[tuple[Request, int]] = field(default_factory=list)
    table_edits: list[TableEdit] = field(default_factory=list)
    admitted: list[Request] = field(default_factory=list)
    preempted: list[Request] = field(default_factory=list)


class _Budget:
    """What is left of a step's tokens and of its prompt chunks."""

    __slots__ = ("chunks", "tokens")

    def __init__(self, limits: SchedulerLimits) -> None:
        self.tokens = limits.max_num_batched_tokens
        self.chunks = limits.max_prefill_chunks_per_step or limits.max_batch_size


class ContinuousScheduler:
    """First come, first served; decodes before prompts; every prompt at its own progress.

    `running` is kept in order of arrival, so that its head is never preempted and its tail always is first. The pool
    must hold one request of the longest length: then the head can always grow, and every request ends.
    """

    def __init__(self, tables: BlockTables, limits: SchedulerLimits) -> None:
        """Schedule within `limits` over the memory of `tables`."""
        self._tables = tables
        self._limits = limits
        self._waiting: deque[Request] = deque()
        self._running: list[Request] = []
        self._free_rows = list(range(limits.max_batch_size - 1, -1, -1))

    @property
    def num_waiting(self) -> int:
        """Requests in the queue, preempted ones included."""
        return len(self._waiting)

    @property
    def num_running(self) -> int:
        """Requests that hold memory."""
        return len(self._running)

    def add(self, request: Request) -> None:
        """Put a waiting request at the end of the queue."""
        assert request.state is RequestState.WAITING
        self._waiting.append(request)

    def retire(self, request: Request, state: RequestState) -> None:
        """Take out a request wherever it is and free its memory at once; `state` is how it ended."""
        if request.state is RequestState.WAITING:
            self._waiting.remove(request)
        else:
            self._running.remove(request)
            self._give_back(request)
        request.state = state

    def schedule(self) -> Schedule:
        """Choose the next step's work and reserve its memory.

        Decodes first, then prompts under way, then admissions. A step that had to preempt somebody admits nobody: what
        the victim at the head of the queue gave up is partly taken, and there was no other free block.
        """
        schedule = Schedule()
        budget = _Budget(self._limits)
        self._schedule_decodes(schedule, budget)
        self._schedule_prefills(schedule, budget)
        self._admit(schedule, budget)
        return schedule

    def mark_computed(self, request: Request, num_tokens: int) -> bool:
        """Record that `num_tokens` more tokens are in the cache; return whether the request's next token is due."""
        request.num_computed_tokens += num_tokens
        if request.num_uncomputed_tokens:
            return False
        request.state = RequestState.DECODE
        return True

    def _schedule_decodes(self, schedule: Schedule, budget: _Budget) -> None:
        for request in tuple(self._running):
            if budget.tokens == 0:
                return
            if request.state is RequestState.DECODE and self._grow(request, schedule):
                schedule.items.append((request, 1))
                budget.tokens -= 1

    def _schedule_prefills(self, schedule: Schedule, budget: _Budget) -> None:
        for request in self._running:
            if request.state is RequestState.PREFILL:
                self._take_chunk(request, schedule, budget)

    def _admit(self, schedule: Schedule, budget: _Budget) -> None:
        limit = int(self._tables.num_free_tokens * (1 - self._limits.kv_reserve))
        num_admitted_tokens = 0
        while self._waiting and self._free_rows:
            request = self._waiting[0]
            num_tokens = len(request.token_ids)
            num_admitted_tokens += num_tokens
            if self._running and num_admitted_tokens > limit:
                return
            if not self._tables.can_reserve(request.request_id, num_tokens):
                return
            if self._chunk_size(request, budget) == 0:
                return
            self._waiting.popleft()
            request.row = self._free_rows.pop()
            request.state = RequestState.PREFILL
            insort(self._running, request, key=lambda running: running.arrival)
            self._reserve(request, schedule)
            schedule.admitted.append(request)
            self._take_chunk(request, schedule, budget)

    def _chunk_size(self, request: Request, budget: _Budget) -> int:
        """Tokens of `request` that this step computes; a whole prompt over the budget is the only one of its step."""
        if budget.chunks == 0 or budget.tokens <= 0:
            return 0
        num_left = request.num_uncomputed_tokens
        if self._limits.prefill_chunk_size is not None:
            return min(num_left, self._limits.prefill_chunk_size, budget.tokens)
        is_first = budget.chunks == (self._limits.max_prefill_chunks_per_step or self._limits.max_batch_size)
        return num_left if num_left <= budget.tokens or is_first else 0

    def _take_chunk(self, request: Request, schedule: Schedule, budget: _Budget) -> None:
        num_tokens = self._chunk_size(request, budget)
        if num_tokens:
            schedule.items.append((request, num_tokens))
            budget.tokens -= num_tokens
            budget.chunks -= 1

    def _grow(self, request: Request, schedule: Schedule) -> bool:
        """Make room for the request's next token, at the cost of the latest arrivals; False if it was itself one."""
        while not self._tables.can_reserve(request.request_id, len(request.token_ids)):
            victim = self._running[-1]
            self._preempt(victim)
            schedule.preempted.append(victim)
            if victim is request:
                return False
        self._reserve(request, schedule)
        return True

    def _reserve(self, request: Request, schedule: Schedule) -> None:
        added = self._tables.reserve(request.request_id, len(request.token_ids))
        if added:
            column = len(self._tables.blocks(request.request_id)) - len(added)
            schedule.table_edits.append(TableEdit(request.row, column, added))

    def _preempt(self, request: Request) -> None:
        self._running.remove(request)
        self._give_back(request)
        request.num_computed_tokens = 0
        request.state = RequestState.WAITING
        self._waiting.appendleft(request)

    def _give_back(self, request: Request) -> None:
        self._tables.release(request.request_id)
        self._free_rows.append(request.row)
        request.row = -1
