"""`GenerateRequest` and `StepOutput`: the input and the output of an engine."""

import enum
from collections.abc import Sequence

import msgspec

from infer_engine.protocol.chat import ChatPrompt
from infer_engine.protocol.sampling import SamplingParams
from infer_engine.protocol.stats import NO_DRAFTS, DraftCounts


class FinishReason(enum.StrEnum):
    """The end of a request: an eos id, a stop id or stop string, a complete grammar, `max_tokens`, or an abort."""

    EOS = "eos"
    STOP = "stop"
    GRAMMAR = "grammar"
    LENGTH = "length"
    ABORT = "abort"


class TokenLogprob(msgspec.Struct, frozen=True, kw_only=True):
    """A token's log-probability under the model, before penalties, biases, temperature and filters.

    Attributes:
        token_id: the token.
        logprob: its log-probability.
        rank: 1 for the most probable token.
        top: (token id, log-probability) of the most probable tokens, as many as requested, best first.
    """

    token_id: int
    logprob: float
    rank: int
    top: list[tuple[int, float]]


class InfillPrompt(msgspec.Struct, frozen=True, kw_only=True):
    """Texts with a gap between them, which a model that was trained to fill in the middle gets in its own format.

    Nothing in the texts becomes a special token.

    Attributes:
        prefix: the text before the gap.
        suffix: the text after it.
        files: names and texts of other files; None leaves out what a format says of files, too.
        cuts: where they are too long, cut the beginning of `files` and `prefix` and the end of `suffix`, so that an
            answer has room; otherwise they are refused.
    """

    prefix: str
    suffix: str
    files: tuple[tuple[str, str], ...] | None = None
    cuts: bool = False


TextPrompt = str | ChatPrompt | InfillPrompt
"""What is tokenized."""


class GenerateRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A prompt to continue, `params.n` times.

    Attributes:
        prompt: a text, token ids, a conversation, or texts with a gap to be filled.
        params: how to sample and when to stop.
        add_special_tokens: whether a text gets the tokens that the tokenizer puts around every text.
        clip_max_tokens: whether a `max_tokens` for which the context has no room is lowered to what it leaves, instead
            of being refused.
        priority: with the `priority` policy lower numbers come first; others ignore it.
        cache_salt: requests share cached prefixes only with those of the same salt.
        tenant: the owner of the request; tenants never share cached prefixes, whatever their salts.
        prediction: a text of which much is expected to be in the answer. With speculative decoding its tokens are
            drafted; it changes none.
    """

    prompt: list[int] | TextPrompt
    params: SamplingParams
    add_special_tokens: bool = True
    clip_max_tokens: bool = False
    priority: int = 0
    cache_salt: str | None = None
    tenant: str | None = None
    prediction: str | None = None


class RequestFailure(msgspec.Struct, frozen=True, kw_only=True):
    """The reason why an accepted request failed. The message is fixed, not one of a library.

    Attributes:
        message: for people.
        code: for programs: `step_failed`, `out_of_memory`, `not_finite`, `grammar_failed`, `text_failed`,
            `engine_dead` or `engine_stuck`; else `internal_error`.
    """

    message: str
    code: str = "internal_error"


class ReasoningDelta(msgspec.Struct, frozen=True, gc=False, tag="reasoning"):
    """More of what the model thinks before it answers."""

    text: str


class ContentDelta(msgspec.Struct, frozen=True, gc=False, tag="content"):
    """More of the text that is meant for the reader."""

    text: str


class ContentWasReasoning(msgspec.Struct, frozen=True, gc=False, tag="content_was_reasoning"):
    """All content so far was reasoning: its end has come, and its beginning was not marked.

    Whoever still holds the content moves it to the reasoning; a stream has sent it.
    """


class ToolCallDelta(msgspec.Struct, frozen=True, gc=False, tag="tool_call"):
    """The beginning of a tool call, or more of its arguments.

    Attributes:
        index: which of the answer's calls it is, from 0.
        name: name of the tool, with the first delta of a call; None with the others.
        arguments: more of the JSON text of the arguments.
    """

    index: int
    name: str | None = None
    arguments: str = ""


AnswerDelta = ReasoningDelta | ContentDelta | ContentWasReasoning | ToolCallDelta


class StepOutput(msgspec.Struct, frozen=True, kw_only=True):
    """The result of one step for one request; the outputs of a request join to its whole answer.

    Attributes:
        request_id: the engine's id of the request.
        token_ids: the tokens of this step, in order; empty only after an abort or a failure.
        text: the text that this step completed. Text is held back while it is part of a character or may begin a stop
            string; it comes with a later output, at the latest with the last one. Of a conversation's answer it is the
            content alone: no reasoning, no tool calls.
        deltas: what this step adds to the parts of a conversation's answer, in order; None where there are no such
            parts, and all of the text is content.
        finished: whether this is the last output.
        finish_reason: why it ended; None while it runs and if it failed.
        stop_reason: with the reason `stop`, which of the request's `stop` or `stop_token_ids` ended it; else None.
        error: why it failed; None otherwise.
        num_prompt_tokens: tokens of the prompt.
        num_completion_tokens: tokens generated so far, including those of this output.
        num_reasoning_tokens: those of them that were generated before the content or the tool calls.
        num_cached_tokens: prompt tokens whose keys and values came from the prefix cache.
        drafts: its drafts of speculative decoding so far.
        logprobs: one for each of `token_ids` if the request asked for them, else None.
        prompt_logprobs: one for each prompt token (None for the first token), with the first output of a request that
            asked for them; else None.
    """

    request_id: str
    token_ids: list[int]
    text: str = ""
    deltas: list[AnswerDelta] | None = None
    finished: bool = False
    finish_reason: FinishReason | None = None
    stop_reason: str | int | None = None
    error: RequestFailure | None = None
    num_prompt_tokens: int
    num_completion_tokens: int
    num_reasoning_tokens: int = 0
    num_cached_tokens: int = 0
    drafts: DraftCounts = NO_DRAFTS
    logprobs: list[TokenLogprob] | None = None
    prompt_logprobs: list[TokenLogprob | None] | None = None


def answer_deltas(output: StepOutput) -> Sequence[AnswerDelta]:
    """Return what `output` adds to an answer, in order; text that is not looked through is content."""
    if output.deltas is not None:
        return output.deltas
    return [ContentDelta(output.text)] if output.text else []
