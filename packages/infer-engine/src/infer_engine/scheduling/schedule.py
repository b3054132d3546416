"""What one pass computes, and what bounds it. Knows requests and counts; knows no policy and no tensors."""

from dataclasses import dataclass, field

from infer_cache.paged_manager import TableEdit
from infer_engine.core.request import Request

RowEdit = tuple[int, TableEdit]
"""A row of the runner's block tables, and what to write into it."""


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

    def max_step_tokens(self, longest_prompt: int) -> int:
        """Return the most tokens of a step: a prompt of `longest_prompt` tokens may be computed whole."""
        return max(self.max_num_batched_tokens, self.prefill_chunk_size or longest_prompt) + self.max_batch_size


@dataclass(slots=True)
class Schedule:
    """One pass's work: a list of (request, how many of its next tokens).

    Attributes:
        items: what to compute. A request's token is sampled when nothing of it is left to compute afterwards.
        table_edits: what changed in the block tables since the pass before, each with the request's row.
        admitted: requests that left the queue in this pass.
        preempted: requests that lost their memory in this pass and are first in the queue again.
        pending_hashes: names of the blocks that this pass fills. Others may use them in this very pass, as every layer
            stores all keys and values before it attends.
        pending_readers: those others. Where the pass fails, they have read what nobody wrote.
    """

    items: list[tuple[Request, int]] = field(default_factory=list)
    table_edits: list[RowEdit] = field(default_factory=list)
    admitted: list[Request] = field(default_factory=list)
    preempted: list[Request] = field(default_factory=list)
    pending_hashes: set[bytes] = field(default_factory=set)
    pending_readers: list[Request] = field(default_factory=list)

    @property
    def needs_sampling(self) -> list[Request]:
        """The requests whose next token is due once this is computed, in the order of the items."""
        return [request for request, count in self.items if request.num_uncomputed_tokens == count]

    def only(self, items: list[tuple[Request, int]]) -> "Schedule":
        """Return a schedule of some of the items, with the same changes to the block tables."""
        return Schedule(items=items, table_edits=self.table_edits)


class StepBudget:
    """What is left of a pass's tokens and of its prompt chunks."""

    __slots__ = ("_limits", "chunks", "tokens")

    def __init__(self, limits: SchedulerLimits) -> None:
        """Begin with all that `limits` allow."""
        self._limits = limits
        self.tokens = limits.max_num_batched_tokens
        self.chunks = limits.max_prefill_chunks_per_step or limits.max_batch_size

    def chunk_size(self, num_tokens: int) -> int:
        """Return how many of a prompt's `num_tokens` tokens fit; a whole prompt over the budget is the only prompt."""
        if self.chunks == 0 or self.tokens <= 0:
            return 0
        if self._limits.prefill_chunk_size is not None:
            return min(num_tokens, self._limits.prefill_chunk_size, self.tokens)
        is_first = self.chunks == (self._limits.max_prefill_chunks_per_step or self._limits.max_batch_size)
        return num_tokens if num_tokens <= self.tokens or is_first else 0

    def take_chunk(self, num_tokens: int) -> None:
        """Spend a prompt's chunk."""
        self.tokens -= num_tokens
        self.chunks -= 1
