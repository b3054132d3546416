"""What `/v1/chat/completions` answers: OpenAI's chat completion and its chunks. Knows shapes; decides nothing."""

from typing import Literal

import msgspec

from infer_engine.protocol import FinishReason, StepOutput
from infer_server.openai.answers import GeneratedToken, cut_short_error
from infer_server.openai.logprobs import ChatLogprobs, ChatTokenLogprob, TokenBytes, chat_token_logprob
from infer_server.openai.reply_heads import OpenAIFinishReason, ReplyHead, openai_word
from infer_server.openai.usage import Usage


class AssistantMessage(msgspec.Struct, frozen=True, kw_only=True):
    """The answer; it can be sent back as the conversation goes on."""

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
    """The answer to a request that does not stream."""

    id: str
    object: Literal["chat.completion"] = "chat.completion"
    created: int
    model: str
    choices: list[ChatChoice]
    usage: Usage


class Delta(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a chunk adds to the message: the role first, then content, nothing at the end."""

    role: Literal["assistant"] | None = None
    content: str | None = None


class ChatChunkChoice(msgspec.Struct, frozen=True, kw_only=True):
    """The next piece of one of the `n` answers."""

    index: int
    delta: Delta
    logprobs: ChatLogprobs | None = None
    finish_reason: OpenAIFinishReason | None = None


class ChatCompletionChunk(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """An event of a stream; one without choices has the usage of the whole request."""

    id: str
    object: Literal["chat.completion.chunk"]
    created: int
    model: str
    choices: list[ChatChunkChoice]
    usage: Usage | None = None


class ChatChunks:
    """Makes the chunks of one stream."""

    __slots__ = ("_head", "_token_bytes")

    def __init__(self, head: ReplyHead, *, token_bytes: TokenBytes) -> None:
        """`token_bytes` gives what a token stands for, for log-probabilities."""
        self._head = head
        self._token_bytes = token_bytes

    def opening(self, index: int, first: StepOutput) -> ChatCompletionChunk:  # noqa: ARG002 - the role needs no output
        """Return the chunk with the role."""
        return self._chunk(ChatChunkChoice(index=index, delta=Delta(role="assistant", content="")))

    def token(self, index: int, token: GeneratedToken) -> ChatCompletionChunk:
        """Return the chunk of one token of choice `index`; its content is empty where text is held back."""
        logprobs = None
        if token.logprob is not None:
            logprobs = ChatLogprobs(content=[chat_token_logprob(token.logprob, self._token_bytes)])
        return self._chunk(ChatChunkChoice(index=index, delta=Delta(content=token.text), logprobs=logprobs))

    def finish(self, index: int, last: StepOutput, *, text: str) -> ChatCompletionChunk:
        """Return the chunk that ends choice `index` after its `last` output; `text` is what no token's chunk had.

        Raises:
            ApiError: 503, the server cut the answer short: no word of OpenAI's says so.
        """
        if last.finish_reason is FinishReason.ABORT:
            raise cut_short_error()
        return self._chunk(
            ChatChunkChoice(index=index, delta=Delta(content=text or None), finish_reason=openai_word(last))
        )

    def usage(self, usage: Usage) -> ChatCompletionChunk:
        """Return the chunk with the usage of the whole request."""
        return self._chunk(usage=usage)

    def _chunk(self, *choices: ChatChunkChoice, usage: Usage | None = None) -> ChatCompletionChunk:
        return ChatCompletionChunk(
            id=self._head.id,
            object="chat.completion.chunk",
            created=self._head.created,
            model=self._head.model,
            choices=list(choices),
            usage=usage,
        )


class WholeChat:
    """Gathers the chat completion of a request that does not stream."""

    __slots__ = ("_head", "_lasts", "_logprobs", "_texts", "_token_bytes")

    def __init__(self, head: ReplyHead, *, num_choices: int, token_bytes: TokenBytes) -> None:
        """`token_bytes` gives what a token stands for, for log-probabilities."""
        self._head = head
        self._token_bytes = token_bytes
        self._texts: list[list[str]] = [[] for _ in range(num_choices)]
        self._logprobs: list[list[ChatTokenLogprob]] = [[] for _ in range(num_choices)]
        self._lasts: dict[int, StepOutput] = {}

    def add(self, index: int, output: StepOutput) -> None:
        """Take an output of the choice `index`."""
        self._texts[index].append(output.text)
        self._logprobs[index] += [chat_token_logprob(entry, self._token_bytes) for entry in output.logprobs or ()]
        self._lasts[index] = output

    def answer(self, usage: Usage) -> ChatCompletion:
        """Return the object."""
        head = self._head
        choices = [self._choice(index, last) for index, last in sorted(self._lasts.items())]
        return ChatCompletion(id=head.id, created=head.created, model=head.model, choices=choices, usage=usage)

    def _choice(self, index: int, last: StepOutput) -> ChatChoice:
        listed = self._logprobs[index]
        return ChatChoice(
            index=index,
            message=AssistantMessage(content="".join(self._texts[index])),
            logprobs=ChatLogprobs(content=listed) if listed else None,
            finish_reason=openai_word(last),
        )
