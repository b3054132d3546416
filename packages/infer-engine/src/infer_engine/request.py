"""`Request`: one sequence inside the core. Knows its tokens, its progress and its state; knows no memory and no text.

WAITING ──admit──> PREFILL ──last chunk──> DECODE ──eos, stop, length──> FINISHED
   ^                  │                       │
   └────preempted─────┴───────────────────────┘      any of the three ──> ABORTED
"""

import enum

from infer_engine.messages import Submit
from infer_engine.protocol import FinishReason, SamplingParams


class RequestState(enum.Enum):
    """Where a request is in its life."""

    WAITING = enum.auto()
    PREFILL = enum.auto()
    DECODE = enum.auto()
    FINISHED = enum.auto()
    ABORTED = enum.auto()


class Request:
    """One sequence inside the core.

    Attributes:
        request_id: as submitted.
        arrival: rank in order of arrival; the lower one came first.
        token_ids: prompt and generated tokens, in order.
        num_prompt_tokens: how many of them are the prompt.
        num_computed_tokens: leading tokens whose keys and values are in the cache.
        max_tokens: most tokens to generate.
        sampling: how to choose them.
        seed: of the random draws.
        state: where it is in its life; the scheduler moves it between WAITING, PREFILL and DECODE.
        row: its row of the runner's block table while it holds memory, else -1.
    """

    __slots__ = (
        "arrival",
        "max_tokens",
        "num_computed_tokens",
        "num_prompt_tokens",
        "request_id",
        "row",
        "sampling",
        "seed",
        "state",
        "token_ids",
    )

    def __init__(self, submitted: Submit, *, arrival: int) -> None:
        """A waiting request of which nothing is computed."""
        self.request_id = submitted.request_id
        self.arrival = arrival
        self.token_ids = list(submitted.prompt_token_ids)
        self.num_prompt_tokens = len(self.token_ids)
        self.num_computed_tokens = 0
        self.max_tokens = submitted.max_tokens
        self.sampling: SamplingParams = submitted.params
        self.seed = submitted.seed
        self.state = RequestState.WAITING
        self.row = -1

    @property
    def num_completion_tokens(self) -> int:
        """Tokens generated so far."""
        return len(self.token_ids) - self.num_prompt_tokens

    @property
    def num_uncomputed_tokens(self) -> int:
        """Tokens known but not in the cache: 1 in decode, what is left of the prompt (or of a recomputation) before."""
        return len(self.token_ids) - self.num_computed_tokens

    def accept(self, token_id: int, *, eos_token_ids: frozenset[int]) -> FinishReason | None:
        """Append a generated token and return why that ends the request, or None."""
        self.token_ids.append(token_id)
        if token_id in eos_token_ids and not self.sampling.ignore_eos:
            return FinishReason.EOS
        if token_id in self.sampling.stop_token_ids:
            return FinishReason.STOP
        if self.num_completion_tokens >= self.max_tokens:
            return FinishReason.LENGTH
        return None
