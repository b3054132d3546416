"""What `/v1/completions` answers: OpenAI's completion object and its chunks. Knows shapes; decides nothing.

A chunk also carries, at its top level, the token it is about, and the last one of a choice how that choice ended.
"""

import time
import uuid
from typing import Literal

import msgspec

from infer_engine.protocol import FinishReason, StepOutput

OpenAIFinishReason = Literal["stop", "length"]

# OpenAI knows no word for a request that the server cut short; `length` is the one that says "there was more to come".
_OPENAI_WORD: dict[FinishReason, OpenAIFinishReason] = {
    FinishReason.EOS: "stop",
    FinishReason.STOP: "stop",
    FinishReason.LENGTH: "length",
    FinishReason.ABORT: "length",
}


class PromptTokensDetails(msgspec.Struct, frozen=True, kw_only=True):
    """Prompt tokens that were found in the prefix cache."""

    cached_tokens: int


class Usage(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Tokens that were read and made; details only where there is something to say."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptTokensDetails | None = None


class CompletionChoice(msgspec.Struct, frozen=True, kw_only=True):
    """One prompt's text, whole or the next piece of it; `index` is the prompt's."""

    index: int
    text: str
    logprobs: None = None
    finish_reason: OpenAIFinishReason | None = None


class Completion(msgspec.Struct, frozen=True, kw_only=True):
    """The answer to a request that does not stream."""

    id: str
    object: Literal["text_completion"] = "text_completion"
    created: int
    model: str
    choices: list[CompletionChoice]
    usage: Usage


class TokenChunk(msgspec.Struct, frozen=True, kw_only=True):
    """One generated token; `token` is what became certain of the text with it, empty where that is held back."""

    id: str
    object: Literal["text_completion"] = "text_completion"
    created: int
    model: str
    choices: list[CompletionChoice]
    token: str
    token_id: int


class FinishChunk(msgspec.Struct, frozen=True, kw_only=True):
    """The end of one choice: the engine's own word for why, and the choice's usage."""

    id: str
    object: Literal["text_completion"] = "text_completion"
    created: int
    model: str
    choices: list[CompletionChoice]
    finish_reason: FinishReason
    usage: Usage


class UsageChunk(msgspec.Struct, frozen=True, kw_only=True):
    """The usage of the whole request, on streams that asked for it."""

    id: str
    object: Literal["text_completion"] = "text_completion"
    created: int
    model: str
    choices: list[CompletionChoice]
    usage: Usage


class CompletionReplies:
    """Makes the replies to one request, which share id, time and model."""

    __slots__ = ("_created", "_id", "_model")

    def __init__(self, *, model: str) -> None:
        """`model` is the id under which the model is served."""
        self._id = f"cmpl-{uuid.uuid4().hex}"
        self._created = int(time.time())
        self._model = model

    def token(self, index: int, *, token_id: int, text: str) -> TokenChunk:
        """Return the chunk of one token of choice `index`."""
        choices = [CompletionChoice(index=index, text=text)]
        return TokenChunk(
            id=self._id, created=self._created, model=self._model, choices=choices, token=text, token_id=token_id
        )

    def finish(self, index: int, last: StepOutput, *, text: str) -> FinishChunk:
        """Return the chunk that ends choice `index` after its `last` output; `text` is what no token's chunk had."""
        reason = _reason(last)
        return FinishChunk(
            id=self._id,
            created=self._created,
            model=self._model,
            choices=[CompletionChoice(index=index, text=text, finish_reason=_OPENAI_WORD[reason])],
            finish_reason=reason,
            usage=usage_of([last]),
        )

    def usage(self, lasts: list[StepOutput]) -> UsageChunk:
        """Return the chunk with the usage of all choices, whose last outputs are `lasts`."""
        return UsageChunk(id=self._id, created=self._created, model=self._model, choices=[], usage=usage_of(lasts))

    def completion(self, texts: list[str], lasts: list[StepOutput]) -> Completion:
        """Return the whole answer from each choice's text and last output."""
        choices = [
            CompletionChoice(index=index, text=text, finish_reason=_OPENAI_WORD[_reason(last)])
            for index, (text, last) in enumerate(zip(texts, lasts, strict=True))
        ]
        return Completion(id=self._id, created=self._created, model=self._model, choices=choices, usage=usage_of(lasts))


def usage_of(lasts: list[StepOutput]) -> Usage:
    """Return the usage of the choices whose last outputs are `lasts`."""
    prompt_tokens = sum(last.num_prompt_tokens for last in lasts)
    completion_tokens = sum(last.num_completion_tokens for last in lasts)
    cached_tokens = sum(last.num_cached_tokens for last in lasts)
    return Usage(
        prompt_tokens=prompt_tokens,
        completion_tokens=completion_tokens,
        total_tokens=prompt_tokens + completion_tokens,
        prompt_tokens_details=PromptTokensDetails(cached_tokens=cached_tokens) if cached_tokens else None,
    )


def _reason(last: StepOutput) -> FinishReason:
    assert last.finish_reason is not None, "a last output has a reason or an error"
    return last.finish_reason
