"""`Request`: one sequence inside the core. Knows its tokens, its progress and its state; knows no memory and no text.

WAITING ──admit──> PREFILL ──last chunk──> DECODE ──eos, stop, length──> FINISHED
   ^                  │                       │
   └────preempted─────┴───────────────────────┘      any of the three ──> ABORTED, FAILED
"""

import enum
from collections.abc import Sequence

from infer_cache.block_hashes import BlockHashes
from infer_engine.ipc.messages import Submit
from infer_engine.protocol import FinishReason, SamplingParams, TokenLogprob


class RequestState(enum.Enum):
    """Where a request is in its life."""

    WAITING = enum.auto()
    PREFILL = enum.auto()
    DECODE = enum.auto()
    FINISHED = enum.auto()
    ABORTED = enum.auto()
    FAILED = enum.auto()


class Request:
    """One sequence inside the core.

    Attributes:
        request_id: as submitted.
        arrival: rank in order of arrival; the lower one came first.
        arrival_step: steps computed before it came.
        priority: as submitted.
        token_ids: prompt and generated tokens, in order.
        num_prompt_tokens: how many of them are the prompt.
        max_tokens: most tokens to generate.
        sampling: how to choose them.
        stop_token_ids: those of its parameters, as a set.
        seed: of the random draws.
        block_hashes: of its full blocks; None where it shares no blocks.
        state: where it is in its life; the scheduler moves it between WAITING, PREFILL and DECODE.
        num_computed_tokens: leading tokens that need not be computed any more.
        num_reused_tokens: leading tokens whose keys and values were in the cache. They are not stored again: where a
            whole sequence was cached, its last token is computed for its logits alone.
        num_cached_tokens: prompt tokens that it found in the cache and that it did not compute itself before.
        num_computed_once: the most tokens that were ever computed, whatever preemption undid.
        capacity: tokens that its blocks have room for.
        prompt_logprobs: of its prompt's tokens so far, None for the first of all; None where nobody asked, and once
            they were handed out. What was measured stays when its memory is lost.
        row: its row of the runner's block tables while it holds memory, else -1.
        last_step: the step in which it was computed last.
        is_suspect: a schedule has failed on it. Once may be chance; starting over for it for ever would stop everybody.
    """

    __slots__ = (
        "arrival",
        "arrival_step",
        "block_hashes",
        "capacity",
        "is_suspect",
        "last_step",
        "max_tokens",
        "num_cached_tokens",
        "num_computed_once",
        "num_computed_tokens",
        "num_prompt_tokens",
        "num_reused_tokens",
        "priority",
        "prompt_logprobs",
        "request_id",
        "row",
        "sampling",
        "seed",
        "state",
        "stop_token_ids",
        "token_ids",
    )

    def __init__(
        self, submitted: Submit, *, arrival: int, arrival_step: int = 0, block_hashes: BlockHashes | None = None
    ) -> None:
        """A waiting request of which nothing is computed."""
        self.request_id = submitted.request_id
        self.arrival = arrival
        self.arrival_step = arrival_step
        self.priority = submitted.priority
        self.token_ids = list(submitted.prompt_token_ids)
        self.num_prompt_tokens = len(self.token_ids)
        self.max_tokens = submitted.max_tokens
        self.sampling: SamplingParams = submitted.params
        self.stop_token_ids = frozenset(submitted.params.stop_token_ids)
        self.seed = submitted.seed
        self.block_hashes = block_hashes
        self.state = RequestState.WAITING
        self.num_computed_tokens = 0
        self.num_reused_tokens = 0
        self.num_cached_tokens = 0
        self.num_computed_once = 0
        self.capacity = 0
        self.prompt_logprobs: list[TokenLogprob | None] | None = (
            None if submitted.params.prompt_logprobs is None else [None]
        )
        self.row = -1
        self.last_step = -1
        self.is_suspect = False

    @property
    def num_completion_tokens(self) -> int:
        """Tokens generated so far."""
        return len(self.token_ids) - self.num_prompt_tokens

    @property
    def num_uncomputed_tokens(self) -> int:
        """Tokens known but not in the cache: 1 in decode, what is left of the prompt (or of a recomputation) before."""
        return len(self.token_ids) - self.num_computed_tokens

    @property
    def reads_cache(self) -> bool:
        """Whether it may begin where others have come to: not before its prompt's log-probabilities are measured."""
        return self.prompt_logprobs is None or len(self.prompt_logprobs) == self.num_prompt_tokens

    def missing_prompt_logprobs(self, num_tokens: int) -> range:
        """Return the positions among the next `num_tokens` that tell a log-probability that is still wanted.

        Position p tells that of the prompt's token p + 1.
        """
        if self.prompt_logprobs is None:
            return range(0)
        end = min(self.num_computed_tokens + num_tokens, self.num_prompt_tokens - 1)
        return range(len(self.prompt_logprobs) - 1, end)

    def add_prompt_logprobs(self, measured: Sequence[TokenLogprob]) -> None:
        """Keep what was measured at the positions that `missing_prompt_logprobs` named."""
        assert self.prompt_logprobs is not None
        self.prompt_logprobs += measured

    def pop_prompt_logprobs(self) -> list[TokenLogprob | None] | None:
        """Return the log-probabilities of the prompt where they were asked for and not handed out before."""
        handed_out, self.prompt_logprobs = self.prompt_logprobs, None
        return handed_out

    def skip_reused(self, num_tokens: int) -> None:
        """Take the first `num_tokens` tokens as computed, but for the last one of all, whose logits are wanted."""
        self.num_reused_tokens = num_tokens
        self.num_computed_tokens = min(num_tokens, len(self.token_ids) - 1)
        num_spared = min(self.num_computed_tokens, self.num_prompt_tokens) - self.num_computed_once
        self.num_cached_tokens += max(0, num_spared)
        self.num_computed_once = max(self.num_computed_once, self.num_computed_tokens)

    def undo_reuse(self) -> None:
        """Take back that tokens were found: they were not there."""
        self.num_cached_tokens = 0
        self.num_computed_once = 0

    def advance(self, num_tokens: int) -> bool:
        """Take `num_tokens` more tokens as computed; return whether the next token is due."""
        self.num_computed_tokens += num_tokens
        self.num_computed_once = max(self.num_computed_once, self.num_computed_tokens)
        if self.num_uncomputed_tokens:
            return False
        self.state = RequestState.DECODE
        return True

    def reset_progress(self) -> None:
        """Wait again with nothing computed; the tokens stay."""
        self.state = RequestState.WAITING
        self.num_computed_tokens = 0
        self.num_reused_tokens = 0
        self.capacity = 0
        self.row = -1

    def accept(self, token_id: int, *, eos_token_ids: frozenset[int]) -> FinishReason | None:
        """Append a generated token and return why that ends the request, or None."""
        self.token_ids.append(token_id)
        if token_id in eos_token_ids and not self.sampling.ignore_eos:
            return FinishReason.EOS
        if token_id in self.stop_token_ids:
            return FinishReason.STOP
        if self.num_completion_tokens >= self.max_tokens:
            return FinishReason.LENGTH
        return None
