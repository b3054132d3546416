"""`Completion`: what was generated for one prompt; `CompletionBuilder` collects it from step outputs."""

from dataclasses import dataclass

from infer_engine.protocol import FinishReason, RequestFailure, StepOutput, TextPrompt, TokenLogprob
from infer_engine.protocol.answers import AnswerBuilder
from infer_engine.protocol.stats import DraftCounts

Prompt = str | list[int]


@dataclass(frozen=True, slots=True, kw_only=True)
class GeneratedCall:
    """A tool call of an answer; `arguments` is JSON text, which is cut short if `max_tokens` ended the answer in it."""

    name: str
    arguments: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Completion:
    """The text generated for one prompt.

    Attributes:
        prompt: as given.
        index: which of the prompt's `n` completions it is, from 0.
        text: the generated text, without stop strings; of a conversation's answer the content alone.
        reasoning: what the model thought before it answered; empty if it did not.
        tool_calls: what the model asks the caller to call.
        token_ids: the generated tokens, an end-of-sequence token included.
        finish_reason: why it ended; None if it failed.
        stop_reason: with the reason `stop`, which stop string or stop id ended it; else None.
        error: why it failed; None otherwise. The tokens generated before the failure are kept.
        logprobs: one for each of `token_ids` if the request asked for them, else None.
        prompt_logprobs: one for each prompt token if the request asked for them (None for the first token); None
            if it did not, or if it failed before its first token.
        num_prompt_tokens: tokens of the prompt.
        num_cached_tokens: prompt tokens whose keys and values came from the prefix cache.
        drafts: its drafts of speculative decoding.
    """

    prompt: list[int] | TextPrompt
    index: int
    text: str
    reasoning: str
    tool_calls: list[GeneratedCall]
    token_ids: list[int]
    finish_reason: FinishReason | None
    stop_reason: str | int | None
    error: RequestFailure | None
    logprobs: list[TokenLogprob] | None
    prompt_logprobs: list[TokenLogprob | None] | None
    num_prompt_tokens: int
    num_cached_tokens: int
    drafts: DraftCounts


class CompletionBuilder:
    """Collects the outputs of one sequence."""

    def __init__(self, prompt: list[int] | TextPrompt, *, index: int) -> None:
        """Start completion `index` of `prompt`, empty."""
        self._prompt = prompt
        self._index = index
        self._answer = AnswerBuilder()
        self._token_ids: list[int] = []
        self._logprobs: list[TokenLogprob] | None = None
        self._prompt_logprobs: list[TokenLogprob | None] | None = None

    def add(self, output: StepOutput) -> None:
        """Add the next output."""
        self._answer.take(output)
        self._token_ids += output.token_ids
        if output.logprobs is not None:
            if self._logprobs is None:
                self._logprobs = []
            self._logprobs += output.logprobs
        if output.prompt_logprobs is not None:
            self._prompt_logprobs = output.prompt_logprobs

    def build(self) -> Completion:
        """Return the completion; its last output must have been added."""
        last = self._answer.last
        assert last.finished
        return Completion(
            prompt=self._prompt,
            index=self._index,
            text=self._answer.text_of("text"),
            reasoning=self._answer.text_of("reasoning"),
            tool_calls=[GeneratedCall(name=call.name, arguments=call.text) for call in self._answer.calls],
            token_ids=self._token_ids,
            finish_reason=last.finish_reason,
            stop_reason=last.stop_reason,
            error=last.error,
            logprobs=self._logprobs,
            prompt_logprobs=self._prompt_logprobs,
            num_prompt_tokens=last.num_prompt_tokens,
            num_cached_tokens=last.num_cached_tokens,
            drafts=last.drafts,
        )
