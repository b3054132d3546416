"""Messages between the frontend and the core: token ids, counts, finish reasons and the marks of answers; no tensors.

The same messages serve a core in this thread, in another thread or in another process.
"""

import msgspec

from infer_engine.protocol import BatchSnapshot, EngineStats, FinishReason, RequestFailure, SamplingParams, TokenLogprob
from infer_engine.protocol.stats import DraftCounts
from infer_models.text import ReasoningFormat, ReasoningState, ToolCallFormat

MAX_CALLS = 64
"""Most calls in one answer; a small model may never come to an end of its own."""


class AnswerMarks(msgspec.Struct, frozen=True, kw_only=True):
    """The marks of an answer, by which its thinking and its calls are found, and which calls it may have.

    Attributes:
        reasoning_format: how the model writes reasoning, in which there are no calls; None if it does not.
        reasoning_state: where the prompt leaves off.
        tool_call_format: how it writes calls; None if it may write none.
        tool_names: names of the tools that are offered.
        strict_names: names of the tools whose arguments must match their schemas, whatever the tokens.
        max_calls: after so many the answer is over.
        must_call: whether the answer must be calls.
        is_free: whether no grammar holds the content.
        shown_ids: special tokens that have a text in answers.
    """

    reasoning_format: ReasoningFormat | None
    reasoning_state: ReasoningState
    tool_call_format: ToolCallFormat | None = None
    tool_names: tuple[str, ...] = ()
    strict_names: tuple[str, ...] = ()
    max_calls: int = MAX_CALLS
    must_call: bool = False
    is_free: bool = True
    shown_ids: frozenset[int] = frozenset()


class ThinkingLimit(msgspec.Struct, frozen=True, kw_only=True):
    """Tells the core when the thinking of an answer must end, and with which tokens.

    Attributes:
        marks: the marks of the answer, which may have reasoning.
        max_tokens: tokens of thinking after which it must end.
        end_token_ids: tokens of what is said then and of the mark of the end, at least one.
        begin_token_id: the token that begins thinking, if it is one.
    """

    marks: AnswerMarks
    max_tokens: int
    end_token_ids: list[int]
    begin_token_id: int | None = None


class Submit(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Queue one sequence. The frontend has checked it: ids in the vocabulary, prompt plus `max_tokens` in the context.

    Attributes:
        request_id: unique among all requests of this core.
        prompt_token_ids: at least one.
        max_tokens: most tokens to generate.
        seed: seed of the random draws; each draw depends on it and on the token's position.
        params: how to sample; the core does not read `max_tokens`, `seed`, `n`, `bad_words` and `structured_outputs`
            there, and of `stop` only whether there are stop strings.
        priority: with the `priority` policy lower numbers come first.
        cache_salt: requests share cached prefixes only with those of the same salt.
        sibling_group: the same value for all sequences of one request with `n` > 1, else None. They share their
            prompt's blocks even if prefix caching is off.
        grammar: the text of a grammar that the tokens must follow, as `infer_engine.structured` makes it; None: any.
        banned_sequences: sequences of tokens that must not be generated: the request's `bad_words`.
        call_marks: the marks of the calls whose arguments the grammar is of: it begins after the head of each; None: it
            begins with the answer.
        thinking_limit: when the thinking of its answer must end; None: when the model ends it.
        message_starts: positions of the prompt at which messages of a conversation may begin, ascending: a later prompt
            may differ from there on.
        predicted_token_ids: tokens that may follow the prompt.
        generated_token_ids: tokens that another core has generated for it. This core computes them again, as after a
            preemption, and goes on behind them; `max_tokens` counts them.
    """

    request_id: str
    prompt_token_ids: list[int]
    max_tokens: int
    seed: int
    params: SamplingParams
    priority: int = 0
    cache_salt: str | None = None
    sibling_group: str | None = None
    grammar: str | None = None
    banned_sequences: list[list[int]] = []
    call_marks: AnswerMarks | None = None
    thinking_limit: ThinkingLimit | None = None
    message_starts: list[int] = []
    predicted_token_ids: list[int] = []
    generated_token_ids: list[int] = []


class Abort(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """End a request and free its memory. An unknown id is no error: the request may have finished before."""

    request_id: str


class Finish(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """End a request because its text has ended, for example by a stop string. An unknown id is no error.

    Attributes:
        request_id: the request to end.
        num_completion_tokens: how many of its generated tokens count. Later ones are discarded, and their blocks
            are not cached.
    """

    request_id: str
    num_completion_tokens: int


class Inspect(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Ask for a snapshot of the batch in the next step's result."""


ToCore = Submit | Abort | Finish | Inspect
"""Messages from the frontend to the core."""


class Halt(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """End the loop that steps a core; the core itself does not get it."""


class TokenOutput(msgspec.Struct, frozen=True, kw_only=True):
    """The result of one step for one request: its tokens, and why it ended if it did.

    Attributes:
        request_id: the request.
        token_ids: the tokens of this step, in order; empty if it failed.
        logprobs: one for each of `token_ids` if the request asked for them, else None.
        prompt_logprobs: one for each prompt token (None for the first token), with the first output of a request that
            asked for them; else None.
        finish_reason: why it ended; None while it runs and if it failed.
        error: why it failed, in its last output; None otherwise.
        num_prompt_tokens: tokens of the prompt.
        num_completion_tokens: tokens generated so far.
        num_cached_tokens: prompt tokens whose keys and values came from the prefix cache.
        drafts: its drafts so far; None: there were none.
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
    drafts: DraftCounts | None = None


class StepResult(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """The result of one step.

    Attributes:
        outputs: one for each request that got a token or failed.
        admitted: ids of the requests that left the queue in this step.
        stats: statistics after the step.
        snapshot: the batch after the step, if an `Inspect` message asked for it.
    """

    outputs: list[TokenOutput]
    admitted: list[str]
    stats: EngineStats
    snapshot: BatchSnapshot | None = None
