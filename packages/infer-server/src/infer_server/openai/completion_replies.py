"""What `/v1/completions` answers: OpenAI's completion object and its chunks. Knows shapes; decides nothing.

A chunk also carries, at its top level, the token it is about, and the last one of a choice how that choice ended.
"""

from collections.abc import Sequence
from typing import Literal

import msgspec

from infer_engine.protocol import FinishReason, RequestStream, StepOutput
from infer_server.openai.answers import GeneratedToken
from infer_server.openai.logprobs import CompletionLogprobLists, CompletionLogprobs, TokenBytes, joined_lists
from infer_server.openai.reply_heads import OpenAIFinishReason, ReplyHead, engine_word, openai_word
from infer_server.openai.usage import Usage, usage_of


class CompletionChoice(msgspec.Struct, frozen=True, kw_only=True):
    """A choice's text, whole or the next piece of it. `index` is the prompt's place, times `n`, plus the choice's."""

    index: int
    text: str
    logprobs: CompletionLogprobs | None = None
    finish_reason: OpenAIFinishReason | None = None


class _CompletionHead(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    object: Literal["text_completion"] = "text_completion"
    created: int
    model: str
    choices: list[CompletionChoice]


class Completion(_CompletionHead, frozen=True, kw_only=True):
    """The answer to a request that does not stream."""

    usage: Usage


class TokenChunk(_CompletionHead, frozen=True, kw_only=True):
    """One token; `token` is what became certain of the text with it. `token_id` is null for an echoed prompt."""

    token: str
    token_id: int | None


class FinishChunk(_CompletionHead, frozen=True, kw_only=True):
    """The end of one choice: the engine's own word for why, and the choice's usage."""

    finish_reason: FinishReason
    usage: Usage


class UsageChunk(_CompletionHead, frozen=True, kw_only=True):
    """The usage of the whole request, on streams that asked for it."""

    usage: Usage


class Echo:
    """The prompts that the texts of one request's choices begin with."""

    __slots__ = ("_streams", "_texts")

    def __init__(self, streams: Sequence[RequestStream], *, texts: Sequence[str]) -> None:
        """`texts` has the prompt's text for each of `streams`; none at all if nothing is echoed."""
        self._streams = streams
        self._texts = texts

    def of(self, index: int, first: StepOutput, lists: CompletionLogprobLists) -> CompletionChoice | None:
        """Return what the choice `index` begins with, None for nothing; `first` is its first output."""
        if not self._texts:
            return None
        text = self._texts[index]
        logprobs = None
        if first.prompt_logprobs is not None:
            logprobs = lists.of_prompt(self._streams[index].prompt_token_ids, first.prompt_logprobs, text=text)
        return CompletionChoice(index=index, text=text, logprobs=logprobs)


class CompletionChunks:
    """Makes the chunks of one stream."""

    __slots__ = ("_echo", "_head", "_lists")

    def __init__(self, head: ReplyHead, *, echo: Echo, num_choices: int, token_bytes: TokenBytes) -> None:
        """`token_bytes` gives what a token stands for, for log-probabilities."""
        self._head = head
        self._echo = echo
        self._lists = [CompletionLogprobLists(token_bytes) for _ in range(num_choices)]

    def opening(self, index: int, first: StepOutput) -> TokenChunk | None:
        """Return the chunk of the echoed prompt, where one is asked for."""
        choice = self._echo.of(index, first, self._lists[index])
        return None if choice is None else self._token_chunk(choice, token_id=None)

    def token(self, index: int, token: GeneratedToken) -> TokenChunk:
        """Return the chunk of one token of choice `index`."""
        logprobs = None if token.logprob is None else self._lists[index].of_tokens([token.logprob])
        choice = CompletionChoice(index=index, text=token.text, logprobs=logprobs)
        return self._token_chunk(choice, token_id=token.token_id)

    def finish(self, index: int, last: StepOutput, *, text: str) -> FinishChunk:
        """Return the chunk that ends choice `index` after its `last` output; `text` is what no token's chunk had."""
        return FinishChunk(
            id=self._head.id,
            created=self._head.created,
            model=self._head.model,
            choices=[CompletionChoice(index=index, text=text, finish_reason=openai_word(last))],
            finish_reason=engine_word(last),
            usage=usage_of([last], choices_per_prompt=1),
        )

    def usage(self, usage: Usage) -> UsageChunk:
        """Return the chunk with the usage of the whole request."""
        head = self._head
        return UsageChunk(id=head.id, created=head.created, model=head.model, choices=[], usage=usage)

    def _token_chunk(self, choice: CompletionChoice, *, token_id: int | None) -> TokenChunk:
        head = self._head
        return TokenChunk(
            id=head.id,
            created=head.created,
            model=head.model,
            choices=[choice],
            token=choice.text,
            token_id=token_id,
        )


class WholeCompletion:
    """Gathers the completion of a request that does not stream."""

    __slots__ = ("_echo", "_head", "_lasts", "_lists", "_logprobs", "_texts")

    def __init__(self, head: ReplyHead, *, echo: Echo, num_choices: int, token_bytes: TokenBytes) -> None:
        """`token_bytes` gives what a token stands for, for log-probabilities."""
        self._head = head
        self._echo = echo
        self._lists = [CompletionLogprobLists(token_bytes) for _ in range(num_choices)]
        self._texts: list[list[str]] = [[] for _ in range(num_choices)]
        self._logprobs: list[list[CompletionLogprobs]] = [[] for _ in range(num_choices)]
        self._lasts: dict[int, StepOutput] = {}

    def add(self, index: int, output: StepOutput) -> None:
        """Take an output of the choice `index`."""
        if not self._texts[index]:
            echoed = self._echo.of(index, output, self._lists[index])
            if echoed is not None:
                self._texts[index].append(echoed.text)
                self._logprobs[index] += [] if echoed.logprobs is None else [echoed.logprobs]
        self._texts[index].append(output.text)
        if output.logprobs is not None:
            self._logprobs[index].append(self._lists[index].of_tokens(output.logprobs))
        self._lasts[index] = output

    def answer(self, usage: Usage) -> Completion:
        """Return the object."""
        choices = [
            CompletionChoice(
                index=index,
                text="".join(texts),
                logprobs=joined_lists(self._logprobs[index]) if self._logprobs[index] else None,
                finish_reason=openai_word(self._lasts[index]),
            )
            for index, texts in enumerate(self._texts)
        ]
        head = self._head
        return Completion(id=head.id, created=head.created, model=head.model, choices=choices, usage=usage)
