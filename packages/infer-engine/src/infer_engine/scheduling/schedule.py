"""`Schedule`: the requests and tokens of one pass; `SchedulerLimits` and `StepBudget` bound it."""

from dataclasses import dataclass, field

from infer_cache.paged_manager import TableEdit
from infer_engine.request import Request, RequestState, StepRow

RowEdit = tuple[int, TableEdit]
"""A row of the runner's block tables, and the edit of that row."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulerLimits:
    """Limits of a step.

    Attributes:
        max_batch_size: most requests that run at the same time.
        max_num_batched_tokens: most tokens of a pass.
        kv_reserve: share of the free KV tokens that admission leaves for running requests to grow.
        prefill_chunk_size: most tokens of one prompt in one pass; None computes every prompt whole.
        max_prefill_chunks_per_step: most prompts in one pass; None for as many as fit.
        max_prefill_tokens_beside_decodes: most tokens of prompts in one pass with decodes, if prompts are computed in
            chunks, which take turns then; None for as many as fit.
        max_captured_tokens: tokens of the largest captured step. Such a pass has no more, its decodes included, where
            this leaves prompts half of them; None: it may have any number.
        max_decode_slowdown: how many times as long as its decodes alone such a pass may take; None: any time.
        max_draft_rows: most rows of drafts in one pass.
    """

    max_batch_size: int
    max_num_batched_tokens: int
    kv_reserve: float = 0.2
    prefill_chunk_size: int | None = 512
    max_prefill_chunks_per_step: int | None = None
    max_prefill_tokens_beside_decodes: int | None = None
    max_captured_tokens: int | None = None
    max_decode_slowdown: float | None = None
    max_draft_rows: int = 0

    @property
    def max_rows(self) -> int:
        """Most sequences of a pass, drafts included."""
        return self.max_batch_size + self.max_draft_rows

    def max_step_tokens(self, longest_prompt: int) -> int:
        """Return the most tokens of a step: a prompt of `longest_prompt` tokens may be computed whole."""
        return max(self.max_num_batched_tokens, self.prefill_chunk_size or longest_prompt) + self.max_rows


@dataclass(slots=True)
class Schedule:
    """The work of one pass: requests, and how many of their next tokens to compute.

    Attributes:
        items: (request, number of tokens). A request is sampled if no tokens are left to compute afterwards.
        decodes: their rows, and those of drafts, if each item is known to be one token after a prompt; else None.
        table_edits: changes of the block tables since the last pass, each with its row.
        admitted: requests that left the queue in this pass.
        preempted: requests that lost their memory in this pass and are first in the queue.
        pending_hashes: hashes of the blocks that this pass computes. Requests may reuse them in the same pass, as each
            layer stores all keys and values before it attends.
        readers: requests that reuse blocks from this pass on.
        pending_readers: those of them that reuse blocks of this pass. If it fails, what they have read is invalid.
    """

    items: list[tuple[Request, int]] = field(default_factory=list)
    decodes: list[StepRow] | None = None
    table_edits: list[RowEdit] = field(default_factory=list)
    admitted: list[Request] = field(default_factory=list)
    preempted: list[Request] = field(default_factory=list)
    pending_hashes: set[bytes] = field(default_factory=set)
    readers: list[Request] = field(default_factory=list)
    pending_readers: list[Request] = field(default_factory=list)

    @property
    def size(self) -> tuple[int, int]:
        """The numbers of decodes' rows, drafts included, and of prompts' tokens that it computes, before it does."""
        if self.decodes is not None:
            return len(self.decodes), 0
        decode = RequestState.DECODE
        num_decodes = sum([request.state is decode for request, _ in self.items])
        return num_decodes, sum([count for _, count in self.items]) - num_decodes

    @property
    def needs_sampling(self) -> list[StepRow]:
        """The rows whose next token is sampled after this pass, in the order of the items."""
        if self.decodes is not None:
            return self.decodes
        return [request for request, count in self.items if request.num_uncomputed_tokens == count]

    def only(self, items: list[tuple[Request, int]]) -> "Schedule":
        """Return a schedule of `items`, with the same table edits."""
        return Schedule(items=items, table_edits=self.table_edits)


class StepBudget:
    """The tokens and prompt chunks that a pass has left."""

    __slots__ = ("_limits", "chunks", "tokens")

    def __init__(self, limits: SchedulerLimits) -> None:
        """Start with all tokens and chunks that `limits` allow."""
        self._limits = limits
        self.tokens = limits.max_num_batched_tokens
        self.chunks = limits.max_prefill_chunks_per_step or limits.max_batch_size

    def chunk_size(self, num_tokens: int) -> int:
        """Return how many of a prompt's `num_tokens` tokens fit; a whole prompt over the budget fits as the first."""
        if self.chunks == 0 or self.tokens <= 0:
            return 0
        if self._limits.prefill_chunk_size is not None:
            return min(num_tokens, self._limits.prefill_chunk_size, self.tokens)
        is_first = self.chunks == (self._limits.max_prefill_chunks_per_step or self._limits.max_batch_size)
        return num_tokens if num_tokens <= self.tokens or is_first else 0

    def take_chunk(self, num_tokens: int) -> None:
        """Take a chunk of `num_tokens` tokens from the budget."""
        self.tokens -= num_tokens
        self.chunks -= 1
