"""The replies of `/v1/completions`: OpenAI's completion object and its chunks, and what builds them.

A chunk also has, at its top level, its token; the last one of a choice has the finish reason and usage there.
"""

from collections.abc import Sequence
from typing import Literal

import msgspec
from msgspec import UNSET, UnsetType

from infer_engine.protocol import FinishReason, RequestStream, StepOutput, TokenLogprob
from infer_server.openai.chunks import GeneratedToken
from infer_server.openai.logprobs import CompletionLogprobLists, CompletionLogprobs, TokenBytes, joined_lists
from infer_server.openai.response_head import OpenAIFinishReason, ResponseHead, finish_reason_of, openai_finish_reason
from infer_server.openai.usage import Usage, usage_of


class CompletionChoice(msgspec.Struct, frozen=True, kw_only=True):
    """The text of a choice, or its next piece. `index` is the prompt's number times `n`, plus the choice's.

    `stop_reason`, at its end, is the stop string or the stop token that ended it; null if it was neither.
    """

    index: int
    text: str
    logprobs: CompletionLogprobs | None = None
    finish_reason: OpenAIFinishReason | None = None
    stop_reason: str | int | UnsetType | None = UNSET


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
    """The end of one choice: the engine's finish reason, and the choice's usage."""

    finish_reason: FinishReason
    usage: Usage


class UsageChunk(_CompletionHead, frozen=True, kw_only=True):
    """The usage of the whole request, on streams that asked for it."""

    usage: Usage


class ChoicePieces:
    """Makes the pieces of a request's choices: the echoed prompt, then generated text, with log-probabilities."""

    __slots__ = ("_echoed_texts", "_lists", "_streams")

    def __init__(
        self, streams: Sequence[RequestStream], *, echoed_texts: Sequence[str], token_bytes: TokenBytes
    ) -> None:
        """`echoed_texts` has the prompt's text for each of `streams`; it is empty if prompts are not echoed."""
        self._streams = streams
        self._echoed_texts = echoed_texts
        self._lists = [CompletionLogprobLists(token_bytes) for _ in streams]

    def echo(self, index: int, first: StepOutput) -> CompletionChoice | None:
        """Return the echoed prompt of the choice `index`, whose first output is `first`; None if there is none."""
        if not self._echoed_texts:
            return None
        text = self._echoed_texts[index]
        logprobs = None
        if first.prompt_logprobs is not None:
            token_ids = self._streams[index].prompt_token_ids
            logprobs = self._lists[index].of_prompt(token_ids, first.prompt_logprobs, text=text)
        return CompletionChoice(index=index, text=text, logprobs=logprobs)

    def generated(self, index: int, text: str, logprobs: Sequence[TokenLogprob] | None) -> CompletionChoice:
        """Return the next piece of generated text of the choice `index`; `logprobs` are those of its tokens."""
        lists = None if logprobs is None else self._lists[index].of_tokens(logprobs)
        return CompletionChoice(index=index, text=text, logprobs=lists)


class CompletionChunkBuilder:
    """Builds the chunks of one stream."""

    __slots__ = ("_head", "_pieces")

    def __init__(self, head: ResponseHead, pieces: ChoicePieces) -> None:
        """Every chunk has the fields of `head`."""
        self._head = head
        self._pieces = pieces

    def start(self, index: int, first: StepOutput) -> TokenChunk | None:
        """Return the chunk of the echoed prompt, if prompts are echoed."""
        choice = self._pieces.echo(index, first)
        return None if choice is None else self._token_chunk(choice, token_id=None)

    def token(self, index: int, token: GeneratedToken) -> tuple[TokenChunk]:
        """Return the chunk of one token of choice `index`."""
        logprobs = None if token.logprob is None else [token.logprob]
        return (self._token_chunk(self._pieces.generated(index, token.text, logprobs), token_id=token.token_id),)

    def finish(self, index: int, last: StepOutput, *, text: str) -> FinishChunk:
        """Return the chunk that ends choice `index` after its `last` output; `text` is what no token's chunk had."""
        return FinishChunk(
            **self._head,
            choices=[
                CompletionChoice(
                    index=index,
                    text=text,
                    finish_reason=openai_finish_reason(last),
                    stop_reason=last.stop_reason,
                )
            ],
            finish_reason=finish_reason_of(last),
            usage=usage_of([last], choices_per_prompt=1),
        )

    def usage(self, usage: Usage) -> UsageChunk:
        """Return the chunk with the usage of the whole request."""
        return UsageChunk(**self._head, choices=[], usage=usage)

    def _token_chunk(self, choice: CompletionChoice, *, token_id: int | None) -> TokenChunk:
        return TokenChunk(**self._head, choices=[choice], token=choice.text, token_id=token_id)


class CompletionResponseBuilder:
    """Builds the completion of a request that does not stream."""

    __slots__ = ("_choices", "_head", "_last_outputs", "_pieces")

    def __init__(self, head: ResponseHead, pieces: ChoicePieces, *, num_choices: int) -> None:
        """The completion has the fields of `head` and `num_choices` choices."""
        self._head = head
        self._pieces = pieces
        self._choices: list[list[CompletionChoice]] = [[] for _ in range(num_choices)]
        self._last_outputs: dict[int, StepOutput] = {}

    def add(self, index: int, output: StepOutput) -> None:
        """Take the next output of the choice `index`."""
        pieces = self._choices[index]
        if not pieces:
            echoed = self._pieces.echo(index, output)
            pieces += [] if echoed is None else [echoed]
        pieces.append(self._pieces.generated(index, output.text, output.logprobs))
        if output.finished:
            self._last_outputs[index] = output

    def build(self, usage: Usage) -> Completion:
        """Return the completion."""
        choices = [
            CompletionChoice(
                index=index,
                text="".join([piece.text for piece in pieces]),
                logprobs=_joined([piece.logprobs for piece in pieces if piece.logprobs is not None]),
                finish_reason=openai_finish_reason(self._last_outputs[index]),
                stop_reason=self._last_outputs[index].stop_reason,
            )
            for index, pieces in enumerate(self._choices)
        ]
        return Completion(**self._head, choices=choices, usage=usage)


def _joined(lists: Sequence[CompletionLogprobs]) -> CompletionLogprobs | None:
    return joined_lists(lists) if lists else None
