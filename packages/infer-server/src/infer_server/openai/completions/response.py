"""The replies of `/v1/completions`: OpenAI's completion object and its chunks, and what builds them.

A chunk also has, at its top level, its token; the last one of a choice has the finish reason and usage there.
"""

from collections.abc import Sequence
from typing import Literal

import msgspec
from msgspec import UNSET, UnsetType

from infer_engine.protocol import FinishReason, RequestStream, StepOutput
from infer_engine.protocol.answers import AnswerBuilder
from infer_server.openai.logprobs import CompletionLogprobLists, CompletionLogprobs, TokenBytes, joined_lists
from infer_server.openai.response_head import OpenAIFinishReason, ResponseHead, finish_reason_of, openai_finish_reason
from infer_server.openai.usage import Usage, usage_of


class CompletionChoice(msgspec.Struct, frozen=True, kw_only=True):
    """The text of a choice, or its next piece. `index` is the prompt's number times `n`, plus the choice's.

    `stop_reason`, at its end, is the stop string or the stop token that ended it; null if it was neither. With
    `return_token_ids` it has its tokens, and those of its prompt.
    """

    index: int
    text: str
    logprobs: CompletionLogprobs | None = None
    finish_reason: OpenAIFinishReason | None = None
    stop_reason: str | int | UnsetType | None = UNSET
    token_ids: list[int] | UnsetType = UNSET
    prompt_token_ids: list[int] | UnsetType = UNSET


class _CompletionHead(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    object: Literal["text_completion"] = "text_completion"
    created: int
    model: str
    choices: list[CompletionChoice]


class Completion(_CompletionHead, frozen=True, kw_only=True):
    """The response to a request that does not stream."""

    usage: Usage


class TokenChunk(_CompletionHead, frozen=True, kw_only=True):
    """One token. `token` is its text, empty while that is not certain; `token_id` is null for an echoed prompt."""

    token: str
    token_id: int | None
    usage: Usage | UnsetType = UNSET


class FinishChunk(_CompletionHead, frozen=True, kw_only=True):
    """The end of one choice: the engine's finish reason, and its usage if no later chunk counts all choices."""

    finish_reason: FinishReason
    usage: Usage | UnsetType = UNSET


class UsageChunk(_CompletionHead, frozen=True, kw_only=True):
    """The usage of the whole request, on streams that asked for it."""

    usage: Usage


class ChoicePieces:
    """Makes the pieces of a request's choices: the echoed prompt, and the log-probabilities of text as it comes."""

    __slots__ = ("_echoed_texts", "_lists", "_streams")

    def __init__(
        self, streams: Sequence[RequestStream], *, echoed_texts: Sequence[str], token_bytes: TokenBytes
    ) -> None:
        """`echoed_texts` has the prompt's text for each of `streams`; it is empty if prompts are not echoed."""
        self._streams = streams
        self._echoed_texts = echoed_texts
        self._lists = [CompletionLogprobLists(token_bytes) for _ in streams]

    def echoed_text(self, index: int) -> str | None:
        """Return the echoed prompt of the choice `index`; None if prompts are not echoed."""
        return self._echoed_texts[index] if self._echoed_texts else None

    def of_prompt(self, index: int, first: StepOutput) -> CompletionLogprobs | None:
        """Return the lists of the prompt of the choice `index`, whose first output is `first`; None if it has none."""
        text = self.echoed_text(index)
        if text is None or first.prompt_logprobs is None:
            return None
        return self._lists[index].of_prompt(self._streams[index].prompt_token_ids, first.prompt_logprobs, text=text)

    def of_tokens(self, index: int, output: StepOutput) -> CompletionLogprobs | None:
        """Return the lists of the tokens of the next `output` of the choice `index`; None if it has none."""
        return None if output.logprobs is None else self._lists[index].of_tokens(output.logprobs)


class CompletionChunkBuilder:
    """Builds the chunks of one stream: a `ChunkBuilder`."""

    __slots__ = ("_counts_choices", "_head", "_pieces")

    def __init__(self, head: ResponseHead, pieces: ChoicePieces, *, counts_choices: bool) -> None:
        """Every chunk has the fields of `head`; with `counts_choices` the last one of a choice has its usage."""
        self._head = head
        self._pieces = pieces
        self._counts_choices = counts_choices

    def start(self, index: int, first: StepOutput) -> TokenChunk | None:
        """Return the chunk of the echoed prompt, if prompts are echoed."""
        text = self._pieces.echoed_text(index)
        if text is None:
            return None
        choice = CompletionChoice(index=index, text=text, logprobs=self._pieces.of_prompt(index, first))
        return TokenChunk(**self._head, choices=[choice], token=text, token_id=None)

    def token(self, index: int, token: StepOutput) -> tuple[TokenChunk]:
        """Return the chunk of one token of choice `index`."""
        choice = CompletionChoice(index=index, text=token.text, logprobs=self._pieces.of_tokens(index, token))
        return (TokenChunk(**self._head, choices=[choice], token=token.text, token_id=token.token_ids[0]),)

    def finish(self, index: int, last: StepOutput, *, text: str) -> FinishChunk:
        """Return the chunk that ends choice `index` after its `last` output; `text` is what no token's chunk had."""
        return FinishChunk(
            **self._head,
            choices=[_ended_choice(index, last, text=text)],
            finish_reason=finish_reason_of(last),
            usage=usage_of([last], choices_per_prompt=1) if self._counts_choices else UNSET,
        )

    def usage(self, usage: Usage) -> UsageChunk:
        """Return the chunk with the usage of the whole request."""
        return UsageChunk(**self._head, choices=[], usage=usage)


class CompletionBuilder:
    """Collects the outputs of a request that does not stream, and builds its completion."""

    __slots__ = ("_answers", "_lists", "_pieces")

    def __init__(self, pieces: ChoicePieces, *, num_choices: int) -> None:
        """Begin `num_choices` choices; `pieces` has what is beside their text."""
        self._pieces = pieces
        self._answers = [AnswerBuilder() for _ in range(num_choices)]
        self._lists: list[list[CompletionLogprobs]] = [[] for _ in range(num_choices)]

    def add(self, index: int, output: StepOutput) -> None:
        """Take the next output of the choice `index`."""
        self._answers[index].add(output)
        found = (self._pieces.of_prompt(index, output), self._pieces.of_tokens(index, output))
        self._lists[index] += [each for each in found if each is not None]

    def build(self, head: ResponseHead, *, choices_per_prompt: int) -> Completion:
        """Return the completion, which has the fields of `head`."""
        choices = [
            _ended_choice(
                index,
                answer.last,
                text=(self._pieces.echoed_text(index) or "") + answer.text_of("text"),
                logprobs=joined_lists(lists) if lists else None,
            )
            for index, (answer, lists) in enumerate(zip(self._answers, self._lists, strict=True))
        ]
        usage = usage_of([answer.last for answer in self._answers], choices_per_prompt=choices_per_prompt)
        return Completion(**head, choices=choices, usage=usage)


def _ended_choice(
    index: int, last: StepOutput, *, text: str, logprobs: CompletionLogprobs | None = None
) -> CompletionChoice:
    return CompletionChoice(
        index=index,
        text=text,
        logprobs=logprobs,
        finish_reason=openai_finish_reason(last),
        stop_reason=last.stop_reason,
    )
