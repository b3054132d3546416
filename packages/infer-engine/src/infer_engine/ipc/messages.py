"""What the front and the core say to each other: token ids, counts and reasons; no text, no tensors, no objects shared.

The same messages serve a core in this thread, in another thread, or behind a socket.
"""

import msgspec

from infer_engine.protocol import BatchSnapshot, EngineStats, FinishReason, RequestFailure, SamplingParams, TokenLogprob


class Submit(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Queue one sequence. The front has checked it: ids in the vocabulary, prompt plus `max_tokens` within the context.

    Attributes:
        request_id: unique among all requests of this core.
        prompt_token_ids: at least one.
        max_tokens: most tokens to generate.
        seed: of the random draws; with the token's position it decides each draw.
        params: how to sample; `max_tokens`, `seed`, `n` and `stop` there are the front's business.
        priority: with the `priority` policy lower numbers come first.
        cache_salt: requests share cached prefixes only with those of the same salt.
        sibling_group: the same name for all the sequences of one request with `n` > 1, else None: they share their
            prompt's blocks, whether or not prefixes are cached.
    """

    request_id: str
    prompt_token_ids: list[int]
    max_tokens: int
    seed: int
    params: SamplingParams
    priority: int = 0
    cache_salt: str | None = None
    sibling_group: str | None = None


class Abort(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Forget a request and free its memory. An unknown id is normal: it may have finished meanwhile."""

    request_id: str


class Finish(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """End a request where its text has ended, by a stop string for instance. An unknown id is normal here too.

    Attributes:
        request_id: which one.
        num_completion_tokens: how many of its generated tokens count; what was computed after them is discarded, and
            kept in no cache.
    """

    request_id: str
    num_completion_tokens: int


class Inspect(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Let the next step's result carry a snapshot of the batch."""


ToCore = Submit | Abort | Finish | Inspect
"""What the front says to the core."""


class Halt(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Step no more; for the loop around a core, which never sees it."""


class TokenOutput(msgspec.Struct, frozen=True, kw_only=True):
    """What one step made for one request: its tokens, and how it ended if it did.

    Attributes:
        request_id: whose.
        token_ids: the tokens of this step, in order; none where it failed.
        logprobs: one for each of `token_ids` where the request asked for them, else None.
        prompt_logprobs: with the first token of a request that asked for them: one for each token of the prompt, None
            for the first of all.
        finish_reason: why it ended; None while it goes on and where it failed.
        error: why it failed; None otherwise. It is the last output then.
        num_prompt_tokens: tokens of the prompt.
        num_completion_tokens: tokens generated so far.
        num_cached_tokens: prompt tokens whose keys and values were found in a cache.
    """

    request_id: str
    token_ids: list[int]
    logprobs: list[TokenLogprob] | None = None
    prompt_logprobs: list[TokenLogprob | None] | None = None
    finish_reason: FinishReason | None = None
    error: RequestFailure | None = None
    num_prompt_tokens: int
    num_completion_tokens: int
    num_cached_tokens: int = 0


class StepResult(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """What one step made.

    Attributes:
        outputs: of the requests that it made something for.
        admitted: ids of the requests that left the queue in it.
        stats: after it.
        snapshot: after it, where somebody asked since the step before.
    """

    outputs: list[TokenOutput]
    admitted: list[str]
    stats: EngineStats
    snapshot: BatchSnapshot | None = None
