"""`Request`: one sequence inside the core: its tokens, its progress and its state; `StepRow`: what a step reads of it.

WAITING ──admit──> PREFILL ──last chunk──> DECODE ──eos, stop, length──> FINISHED
   ^                  │                       │
   └────preempted─────┴───────────────────────┘      any of the three ──> ABORTED, FAILED
"""

import enum
from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

from infer_cache.block_hashes import BlockHashes
from infer_cache.states.sequence_states import NO_MOVE, StateMove
from infer_engine.messages import Submit
from infer_engine.protocol import FinishReason, TokenLogprob

if TYPE_CHECKING:
    from infer_engine.protocol.stats import DraftCounts
    from infer_engine.structured.bitmasks import Bitmask
    from infer_engine.structured.constraint import Constraint


class RequestState(enum.Enum):
    """State of a request; see the diagram above."""

    WAITING = enum.auto()
    PREFILL = enum.auto()
    DECODE = enum.auto()
    FINISHED = enum.auto()
    ABORTED = enum.auto()
    FAILED = enum.auto()


class RowConstraint(Protocol):
    """A constraint, as a step reads it."""

    def mask(self) -> "Bitmask | None":
        """Return the tokens that may come next; None: all."""


class StepRow:
    """One sequence of a step: what the input buffers and the sampler read of it.

    Attributes:
        submission: the message that made its request.
        request_id: the id of that request.
        arrival: number in order of arrival, from 0.
        token_ids: prompt and generated tokens, in order.
        num_prompt_tokens: how many of them are the prompt.
        max_length: most tokens of prompt and output together.
        constraint: which tokens may come next; None: all.
        state: its state; the scheduler moves it between WAITING, PREFILL and DECODE.
        num_computed_tokens: leading tokens that are computed or reused.
        num_reused_tokens: leading tokens whose keys and values came from the prefix cache. They are not stored again:
            if the whole sequence is cached, its last token is computed only for its logits.
        row: its row of the runner's block tables while it holds memory, else -1.
        pending_row: while its next token is chosen and the host has not read it: its row of the logits from which it
            is chosen; else -1.
        state_move: the slots of its states in the latest step that it was scheduled for, if the model has states.
        drafts: tokens at the end of `token_ids` that its request may or may not take.
    """

    drafts: Sequence[int] = ()

    __slots__ = (
        "arrival",
        "constraint",
        "max_length",
        "num_computed_tokens",
        "num_prompt_tokens",
        "num_reused_tokens",
        "pending_row",
        "request_id",
        "row",
        "state",
        "state_move",
        "submission",
        "token_ids",
    )

    def __init__(
        self,
        submission: Submit,
        token_ids: Sequence[int],
        *,
        arrival: int,
        state: RequestState,
        row: int = -1,
        num_computed_tokens: int = 0,
        num_reused_tokens: int = 0,
        constraint: RowConstraint | None = None,
        state_move: StateMove = NO_MOVE,
    ) -> None:
        """Make the row of a sequence of `token_ids`; arguments as the attributes."""
        self.submission = submission
        self.request_id = submission.request_id
        self.arrival = arrival
        self.token_ids = token_ids
        self.num_prompt_tokens = len(submission.prompt_token_ids)
        self.max_length = self.num_prompt_tokens + submission.max_tokens
        self.constraint = constraint
        self.state = state
        self.num_computed_tokens = num_computed_tokens
        self.num_reused_tokens = num_reused_tokens
        self.row = row
        self.pending_row = -1
        self.state_move = state_move

    @property
    def num_completion_tokens(self) -> int:
        """Tokens generated so far."""
        return len(self.token_ids) - self.num_prompt_tokens

    @property
    def num_tokens(self) -> int:
        """Tokens of the sequence, the pending one included."""
        return len(self.token_ids) + (self.pending_row >= 0)

    @property
    def num_uncomputed_tokens(self) -> int:
        """Tokens that are still to be computed: 1 in decode, the rest of the prompt or of a recomputation before."""
        return self.num_tokens - self.num_computed_tokens

    def verified(self) -> "Request | None":
        """Return the request whose next token is the one chosen for this row; None: no request's."""
        return None


class Request(StepRow):
    """One sequence inside the core.

    Attributes:
        arrival_step: number of steps computed before it arrived.
        stop_token_ids: the stop ids of its parameters, as a set.
        block_hashes: hashes of its full blocks; None if it shares no blocks.
        num_cached_tokens: prompt tokens that came from the prefix cache and that it had not computed before.
        num_computed_once: largest value of `num_computed_tokens` before it was preempted.
        capacity: tokens that fit its blocks.
        prompt_logprobs: log-probabilities of its prompt so far, None for the first token; None if it did not ask for
            them and after they were returned. Preemption keeps them.
        last_step: the latest step that computed it.
        has_ended: whether it finished, failed or was aborted.
        has_failed_scheduling: whether scheduling it has raised an exception. The second time it fails.
        draft_counts: its drafts so far; None: there were none.
    """

    token_ids: list[int]
    constraint: "Constraint | None"

    __slots__ = (
        "arrival_step",
        "block_hashes",
        "capacity",
        "draft_counts",
        "has_ended",
        "has_failed_scheduling",
        "last_step",
        "num_cached_tokens",
        "num_computed_once",
        "prompt_logprobs",
        "stop_token_ids",
    )

    def __init__(
        self,
        submission: Submit,
        *,
        arrival: int,
        arrival_step: int = 0,
        block_hashes: BlockHashes | None = None,
        constraint: "Constraint | None" = None,
    ) -> None:
        """Create a waiting request with no computed tokens; `constraint` is at its beginning."""
        super().__init__(
            submission,
            [*submission.prompt_token_ids, *submission.generated_token_ids],
            arrival=arrival,
            state=RequestState.WAITING,
            constraint=constraint,
        )
        self.arrival_step = arrival_step
        self.stop_token_ids = frozenset(submission.params.stop_token_ids)
        self.block_hashes = block_hashes
        self.num_cached_tokens = 0
        self.num_computed_once = 0
        self.capacity = 0
        wants_prompt_logprobs = submission.params.prompt_logprobs is not None and not submission.generated_token_ids
        self.prompt_logprobs: list[TokenLogprob | None] | None = [None] if wants_prompt_logprobs else None
        self.draft_counts: DraftCounts | None = None
        self.last_step = -1
        self.has_ended = False
        self.has_failed_scheduling = False
        if constraint is not None:
            for token_id in submission.generated_token_ids:
                constraint.consume(token_id)

    @property
    def awaits_last_token(self) -> bool:
        """Whether its pending token is the last that it may have, so that there is nothing to compute."""
        return self.pending_row >= 0 and len(self.token_ids) + 1 >= self.max_length

    @property
    def reads_cache(self) -> bool:
        """Whether it may reuse cached blocks: not while log-probabilities of its prompt are missing."""
        return self.prompt_logprobs is None or len(self.prompt_logprobs) == self.num_prompt_tokens

    def missing_prompt_logprobs(self, num_tokens: int) -> range:
        """Return the positions among the next `num_tokens` whose logits give a prompt log-probability that is missing.

        Position p gives the log-probability of prompt token p + 1. Those before `num_computed_tokens` are known or on
        their way: a request that wants them reuses no cached block.
        """
        if self.prompt_logprobs is None:
            return range(0)
        end = min(self.num_computed_tokens + num_tokens, self.num_prompt_tokens - 1)
        return range(max(len(self.prompt_logprobs) - 1, self.num_computed_tokens), end)

    def add_prompt_logprobs(self, logprobs: Sequence[TokenLogprob]) -> None:
        """Add the log-probabilities of the positions that `missing_prompt_logprobs` returned."""
        assert self.prompt_logprobs is not None
        self.prompt_logprobs += logprobs

    def pop_prompt_logprobs(self) -> list[TokenLogprob | None] | None:
        """Return the log-probabilities of the prompt, or None if it has none; the next call returns None."""
        logprobs, self.prompt_logprobs = self.prompt_logprobs, None
        return logprobs

    def skip_reused(self, num_tokens: int) -> None:
        """Mark the first `num_tokens` tokens as computed, except the last of the sequence, whose logits are needed."""
        num_computed_once = max(self.num_computed_once, self.num_computed_tokens)
        self.num_reused_tokens = num_tokens
        self.num_computed_tokens = min(num_tokens, len(self.token_ids) - 1)
        num_spared = min(self.num_computed_tokens, self.num_prompt_tokens) - num_computed_once
        self.num_cached_tokens += max(0, num_spared)

    def undo_reuse(self) -> None:
        """Undo the count of cached tokens, because the blocks that it reused were never computed."""
        self.num_cached_tokens = 0
        self.num_computed_once = 0

    def reset_progress(self) -> None:
        """Return to the waiting state with no computed tokens; its tokens stay."""
        self.num_computed_once = max(self.num_computed_once, self.num_computed_tokens)
        self.state = RequestState.WAITING
        self.num_computed_tokens = 0
        self.num_reused_tokens = 0
        self.capacity = 0
        self.row = -1

    def verified(self) -> "Request":
        """Return this request."""
        return self

    def append_token(self, token_id: int, eos_token_ids: frozenset[int]) -> FinishReason | None:
        """Append a generated token; return the finish reason if it ends the request, else None."""
        token_ids = self.token_ids
        token_ids.append(token_id)
        self.pending_row = -1
        may_end = token_id in eos_token_ids or token_id in self.stop_token_ids or len(token_ids) >= self.max_length
        if not may_end and self.constraint is None:  # most tokens
            return None
        if self.constraint is not None:
            self.constraint.consume(token_id)
        if token_id in eos_token_ids and not self.submission.params.ignore_eos:
            return FinishReason.EOS
        if token_id in self.stop_token_ids:
            return FinishReason.STOP
        if self.constraint is not None and self.constraint.is_over:
            return FinishReason.GRAMMAR
        if len(token_ids) >= self.max_length:
            return FinishReason.LENGTH
        return None
