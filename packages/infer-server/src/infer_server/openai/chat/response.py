"""The replies of `/v1/chat/completions`: OpenAI's chat completion and its chunks, and what builds them."""

from collections.abc import Iterator, Sequence
from typing import Literal, NamedTuple

import msgspec
from msgspec import UNSET, UnsetType

from infer_engine.protocol import AnswerDelta, ContentDelta, FinishReason, ReasoningDelta, StepOutput, ToolCallDelta
from infer_engine.protocol.answers import AnswerBuilder
from infer_server.api.failures import shutdown_error
from infer_server.api.tools import new_call_id
from infer_server.openai.logprobs import ChatLogprobs, ChatTokenLogprob, TokenBytes, chat_token_logprob
from infer_server.openai.response_head import OpenAIFinishReason, ResponseHead, openai_finish_reason
from infer_server.openai.usage import Usage, usage_of


class CalledFunction(msgspec.Struct, frozen=True, kw_only=True):
    """The function that a call is for; the arguments are JSON text."""

    name: str
    arguments: str


class CallStyle(NamedTuple):
    """The style of tool calls: the finish reason of an answer that has some, and whether it is the older style.

    In that an answer has one `function_call` in place of `tool_calls`.
    """

    finish_reason: OpenAIFinishReason = "tool_calls"
    is_older: bool = False


TOOL_CALLS = CallStyle()


class MessageToolCall(msgspec.Struct, frozen=True, kw_only=True):
    """A call that the client shall make."""

    id: str
    type: Literal["function"] = "function"
    function: CalledFunction


class AssistantMessage(msgspec.Struct, frozen=True, kw_only=True):
    """The answer. Clients can send it back as a message of the conversation.

    `content` is null where there are calls and no text. The reasoning has two names: clients know one or the other.
    """

    role: Literal["assistant"] = "assistant"
    content: str | None
    refusal: None = None
    reasoning_content: str | UnsetType = UNSET
    reasoning: str | UnsetType = UNSET
    tool_calls: list[MessageToolCall] | UnsetType = UNSET
    function_call: CalledFunction | UnsetType = UNSET


class ChatChoice(msgspec.Struct, frozen=True, kw_only=True):
    """One of the `n` answers; `stop_reason` is the stop string or stop token that ended it, null if it was neither.

    With `return_token_ids` it has its tokens.
    """

    index: int
    message: AssistantMessage
    logprobs: ChatLogprobs | None = None
    finish_reason: OpenAIFinishReason
    stop_reason: str | int | None = None
    token_ids: list[int] | UnsetType = UNSET


class ChatCompletion(msgspec.Struct, frozen=True, kw_only=True):
    """The response to a request that does not stream."""

    id: str
    object: Literal["chat.completion"] = "chat.completion"
    created: int
    model: str
    choices: list[ChatChoice]
    usage: Usage
    prompt_token_ids: list[int] | UnsetType = UNSET


class FunctionDelta(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The name of a called function, with its first delta, or more of its arguments."""

    name: str | None = None
    arguments: str | None = None


class ToolCallEntry(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The beginning of the call `index`, with its id, or more of it."""

    index: int
    id: str | None = None
    type: Literal["function"] | None = None
    function: FunctionDelta


class Delta(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The part of the message that a chunk adds: first the role, then its parts, at the end nothing."""

    role: Literal["assistant"] | None = None
    content: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    tool_calls: list[ToolCallEntry] | None = None
    function_call: FunctionDelta | None = None


class ChatChunkChoice(msgspec.Struct, frozen=True, kw_only=True):
    """The next piece of one of the `n` answers."""

    index: int
    delta: Delta
    logprobs: ChatLogprobs | None = None
    finish_reason: OpenAIFinishReason | None = None
    stop_reason: str | int | UnsetType | None = UNSET
    token_ids: list[int] | UnsetType = UNSET


class ChatCompletionChunk(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """An event of a stream. The one without choices has the usage of the whole request."""

    id: str
    object: Literal["chat.completion.chunk"]
    created: int
    model: str
    choices: list[ChatChunkChoice]
    usage: Usage | None = None
    prompt_token_ids: list[int] | UnsetType = UNSET


class ChatChunkBuilder:
    """Builds the chunks of one stream."""

    __slots__ = ("_call_style", "_head", "_token_bytes", "_with_calls")

    def __init__(self, head: ResponseHead, *, token_bytes: TokenBytes, call_style: CallStyle = TOOL_CALLS) -> None:
        """`token_bytes` gives the bytes of a token, for log-probabilities."""
        self._head = head
        self._token_bytes = token_bytes
        self._call_style = call_style
        self._with_calls: set[int] = set()

    def start(self, index: int, first: StepOutput) -> ChatCompletionChunk:
        """Return the chunk with the role; an answer that may be calls alone has no content yet, not an empty one."""
        content = "" if first.deltas is None else None
        return self._chunk(ChatChunkChoice(index=index, delta=Delta(role="assistant", content=content)))

    def token(self, index: int, token: StepOutput) -> Iterator[ChatCompletionChunk]:
        """Yield the chunks of one token of choice `index`; the first has its log-probability."""
        logprobs = None
        if token.logprobs:
            logprobs = ChatLogprobs(content=[chat_token_logprob(token.logprobs[0], self._token_bytes)])
        if token.deltas is None:
            yield self._chunk(ChatChunkChoice(index=index, delta=Delta(content=token.text), logprobs=logprobs))
            return
        for delta in self._deltas(index, token.deltas):
            yield self._chunk(ChatChunkChoice(index=index, delta=delta, logprobs=logprobs))
            logprobs = None

    def finish(self, index: int, last: StepOutput, *, text: str) -> ChatCompletionChunk:
        """Return the chunk that ends choice `index` after its `last` output; `text` is what no token's chunk had.

        Raises:
            ApiError: 503, the server's shutdown aborted it: OpenAI has no finish reason for that.
        """
        if last.finish_reason is FinishReason.ABORT:
            raise shutdown_error()
        delta = Delta(content=text or None)
        if last.deltas is not None and not last.token_ids:  # what was held back is of one kind
            [delta] = self._deltas(index, last.deltas)
        reason = _finish_reason(last, self._call_style if index in self._with_calls else None)
        choice = ChatChunkChoice(index=index, delta=delta, finish_reason=reason, stop_reason=last.stop_reason)
        return self._chunk(choice)

    def usage(self, usage: Usage) -> ChatCompletionChunk:
        """Return the chunk with the usage of the whole request."""
        return self._chunk(usage=usage)

    def _deltas(self, index: int, parts: Sequence[AnswerDelta]) -> list[Delta]:
        """Return the deltas of `parts`, at least one; a call begins in a delta of its own."""
        deltas: list[Delta] = []
        for part in parts:
            if isinstance(part, ContentDelta):
                before = deltas.pop().content or "" if deltas and deltas[-1].content else ""
                deltas.append(Delta(content=before + part.text))
            elif isinstance(part, ReasoningDelta):
                deltas.append(Delta(reasoning_content=part.text, reasoning=part.text))
            elif isinstance(part, ToolCallDelta):
                self._with_calls.add(index)
                deltas.append(_older_call_delta(part) if self._call_style.is_older else _call_delta(part))
            else:  # what came before has been sent as content; the answer begins after it
                deltas.append(Delta(content="\n\n"))
        return deltas or [Delta()]

    def _chunk(self, *choices: ChatChunkChoice, usage: Usage | None = None) -> ChatCompletionChunk:
        return ChatCompletionChunk(**self._head, object="chat.completion.chunk", choices=list(choices), usage=usage)


class ChatBuilder:
    """Collects the outputs of a request that does not stream, and builds its chat completion."""

    __slots__ = ("_answers", "_logprobs", "_token_bytes")

    def __init__(self, *, num_choices: int, token_bytes: TokenBytes) -> None:
        """Begin `num_choices` answers; `token_bytes` gives the bytes of a token, for log-probabilities."""
        self._token_bytes = token_bytes
        self._answers = [AnswerBuilder() for _ in range(num_choices)]
        self._logprobs: list[list[ChatTokenLogprob]] = [[] for _ in range(num_choices)]

    def add(self, index: int, output: StepOutput) -> None:
        """Take the next output of the choice `index`."""
        self._answers[index].take(output)
        self._logprobs[index] += [chat_token_logprob(entry, self._token_bytes) for entry in output.logprobs or ()]

    def build(self, head: ResponseHead, *, choices_per_prompt: int, call_style: CallStyle) -> ChatCompletion:
        """Return the completion, which has the fields of `head`."""
        choices = [
            ChatChoice(
                index=index,
                message=_message(answer, call_style),
                logprobs=ChatLogprobs(content=entries) if entries else None,
                finish_reason=_finish_reason(answer.last, call_style if answer.calls else None),
                stop_reason=answer.last.stop_reason,
            )
            for index, (answer, entries) in enumerate(zip(self._answers, self._logprobs, strict=True))
        ]
        usage = usage_of([answer.last for answer in self._answers], choices_per_prompt=choices_per_prompt)
        return ChatCompletion(**head, choices=choices, usage=usage)


def _finish_reason(last: StepOutput, call_style: CallStyle | None) -> OpenAIFinishReason:
    """Return the finish reason of an answer, which has calls if there is a `call_style`."""
    reason = openai_finish_reason(last)
    return call_style.finish_reason if reason == "stop" and call_style is not None else reason


def _older_call_delta(part: ToolCallDelta) -> Delta:
    return Delta(function_call=FunctionDelta(name=part.name, arguments=part.arguments))


def _call_delta(part: ToolCallDelta) -> Delta:
    if part.name is None:
        return Delta(tool_calls=[ToolCallEntry(index=part.index, function=FunctionDelta(arguments=part.arguments))])
    function = FunctionDelta(name=part.name, arguments=part.arguments)
    return Delta(tool_calls=[ToolCallEntry(index=part.index, id=new_call_id(), type="function", function=function)])


def _message(answer: AnswerBuilder, call_style: CallStyle) -> AssistantMessage:
    content = answer.text_of("text")
    reasoning = answer.text_of("reasoning") or UNSET
    called = [CalledFunction(name=call.name, arguments=call.text) for call in answer.calls]
    calls = [MessageToolCall(id=new_call_id(), function=function) for function in called]
    is_older = call_style.is_older and bool(called)
    return AssistantMessage(
        content=None if calls and not content else content,
        reasoning_content=reasoning,
        reasoning=reasoning,
        tool_calls=UNSET if is_older or not calls else calls,
        function_call=called[0] if is_older else UNSET,
    )
