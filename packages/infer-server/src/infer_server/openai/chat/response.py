"""The replies of `/v1/chat/completions`: OpenAI's chat completion and its chunks, and what builds them."""

from typing import Literal

import msgspec

from infer_engine.protocol import FinishReason, StepOutput
from infer_server.generation.failures import shutdown_error
from infer_server.openai.builders import GeneratedToken
from infer_server.openai.logprobs import ChatLogprobs, ChatTokenLogprob, TokenBytes, chat_token_logprob
from infer_server.openai.response_head import OpenAIFinishReason, ResponseHead, openai_finish_reason
from infer_server.openai.usage import Usage


class AssistantMessage(msgspec.Struct, frozen=True, kw_only=True):
    """The answer. Clients can send it back as a message of the conversation."""

    role: Literal["assistant"] = "assistant"
    content: str
    refusal: None = None


class ChatChoice(msgspec.Struct, frozen=True, kw_only=True):
    """One of the `n` answers."""

    index: int
    message: AssistantMessage
    logprobs: ChatLogprobs | None = None
    finish_reason: OpenAIFinishReason


class ChatCompletion(msgspec.Struct, frozen=True, kw_only=True):
    """The response to a request that does not stream."""

    id: str
    object: Literal["chat.completion"] = "chat.completion"
    created: int
    model: str
    choices: list[ChatChoice]
    usage: Usage


class Delta(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a chunk adds to the message: first the role, then content, at the end nothing."""

    role: Literal["assistant"] | None = None
    content: str | None = None


class ChatChunkChoice(msgspec.Struct, frozen=True, kw_only=True):
    """The next piece of one of the `n` answers."""

    index: int
    delta: Delta
    logprobs: ChatLogprobs | None = None
    finish_reason: OpenAIFinishReason | None = None


class ChatCompletionChunk(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """An event of a stream. The one without choices has the usage of the whole request."""

    id: str
    object: Literal["chat.completion.chunk"]
    created: int
    model: str
    choices: list[ChatChunkChoice]
    usage: Usage | None = None


class ChatChunkBuilder:
    """Builds the chunks of one stream."""

    __slots__ = ("_head", "_token_bytes")

    def __init__(self, head: ResponseHead, *, token_bytes: TokenBytes) -> None:
        """`token_bytes` gives the bytes of a token, for log-probabilities."""
        self._head = head
        self._token_bytes = token_bytes

    def start(self, index: int, first: StepOutput) -> ChatCompletionChunk:  # noqa: ARG002 - the role needs no output
        """Return the chunk with the role."""
        return self._chunk(ChatChunkChoice(index=index, delta=Delta(role="assistant", content="")))

    def token(self, index: int, token: GeneratedToken) -> ChatCompletionChunk:
        """Return the chunk of one token of choice `index`."""
        logprobs = None
        if token.logprob is not None:
            logprobs = ChatLogprobs(content=[chat_token_logprob(token.logprob, self._token_bytes)])
        return self._chunk(ChatChunkChoice(index=index, delta=Delta(content=token.text), logprobs=logprobs))

    def finish(self, index: int, last: StepOutput, *, text: str) -> ChatCompletionChunk:
        """Return the chunk that ends choice `index` after its `last` output; `text` is what no token's chunk had.

        Raises:
            ApiError: 503, the server's shutdown aborted it: OpenAI has no finish reason for that.
        """
        if last.finish_reason is FinishReason.ABORT:
            raise shutdown_error()
        delta = Delta(content=text or None)
        return self._chunk(ChatChunkChoice(index=index, delta=delta, finish_reason=openai_finish_reason(last)))

    def usage(self, usage: Usage) -> ChatCompletionChunk:
        """Return the chunk with the usage of the whole request."""
        return self._chunk(usage=usage)

    def _chunk(self, *choices: ChatChunkChoice, usage: Usage | None = None) -> ChatCompletionChunk:
        return ChatCompletionChunk(**self._head, object="chat.completion.chunk", choices=list(choices), usage=usage)


class ChatResponseBuilder:
    """Builds the chat completion of a request that does not stream."""

    __slots__ = ("_head", "_last_outputs", "_logprobs", "_texts", "_token_bytes")

    def __init__(self, head: ResponseHead, *, num_choices: int, token_bytes: TokenBytes) -> None:
        """`token_bytes` gives the bytes of a token, for log-probabilities."""
        self._head = head
        self._token_bytes = token_bytes
        self._texts: list[list[str]] = [[] for _ in range(num_choices)]
        self._logprobs: list[list[ChatTokenLogprob]] = [[] for _ in range(num_choices)]
        self._last_outputs: dict[int, StepOutput] = {}

    def add(self, index: int, output: StepOutput) -> None:
        """Take the next output of the choice `index`."""
        self._texts[index].append(output.text)
        self._logprobs[index] += [chat_token_logprob(entry, self._token_bytes) for entry in output.logprobs or ()]
        self._last_outputs[index] = output

    def build(self, usage: Usage) -> ChatCompletion:
        """Return the completion."""
        choices = [self._choice(index, last) for index, last in sorted(self._last_outputs.items())]
        return ChatCompletion(**self._head, choices=choices, usage=usage)

    def _choice(self, index: int, last: StepOutput) -> ChatChoice:
        entries = self._logprobs[index]
        return ChatChoice(
            index=index,
            message=AssistantMessage(content="".join(self._texts[index])),
            logprobs=ChatLogprobs(content=entries) if entries else None,
            finish_reason=openai_finish_reason(last),
        )
