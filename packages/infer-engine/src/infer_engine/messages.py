"""What the front and the core say to each other: token ids, counts and reasons; no text, no tensors, no objects shared.

The same messages serve a core in this thread, in another thread, or behind a socket.
"""

import msgspec

from infer_engine.protocol import EngineStats, FinishReason, SamplingParams


class Submit(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Queue one sequence. The front has checked it: ids in the vocabulary, prompt plus `max_tokens` within the context.

    Attributes:
        request_id: unique among all requests of this core.
        prompt_token_ids: at least one.
        max_tokens: most tokens to generate.
        seed: of the random draws; with the token's position it decides each draw.
        params: how to sample; `max_tokens`, `seed` and `stop` there are the front's business.
    """

    request_id: str
    prompt_token_ids: list[int]
    max_tokens: int
    seed: int
    params: SamplingParams


class Abort(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Forget a request and free its memory. An unknown id is normal: it may have finished meanwhile."""

    request_id: str


class TokenOutput(msgspec.Struct, frozen=True, kw_only=True):
    """What one step made for one request: its tokens, and how it ended if it did."""

    request_id: str
    token_ids: list[int]
    finish_reason: FinishReason | None = None
    num_prompt_tokens: int
    num_completion_tokens: int


class StepResult(msgspec.Struct, frozen=True, kw_only=True):
    """One step's outputs, the ids of the requests that left the queue in it, and a snapshot after it."""

    outputs: list[TokenOutput]
    admitted: list[str]
    stats: EngineStats
