"""The answers of `/v1/messages`: Anthropic's message, and the events that make one up."""

import json
import secrets
from collections.abc import AsyncGenerator, Iterator
from typing import Literal, NoReturn

import msgspec

from infer_engine.protocol import FinishReason, RequestStream, StepOutput
from infer_server.anthropic.errors import error_event
from infer_server.api.answer_blocks import (
    AnswerBlock,
    AnswerBlocks,
    BlockEnded,
    BlockEvent,
    BlockGrown,
    whole_answer,
)
from infer_server.api.failures import raise_if_unfinished
from infer_server.errors import ApiError
from infer_server.http.sse import named_event

StopReason = Literal["end_turn", "max_tokens", "stop_sequence", "tool_use"]


class TextBlock(msgspec.Struct, frozen=True, kw_only=True, tag="text"):
    """A text."""

    text: str


class ThinkingBlock(msgspec.Struct, frozen=True, kw_only=True, tag="thinking"):
    """What the model thought; nobody signs it here."""

    thinking: str
    signature: str = ""


class ToolUseBlock(msgspec.Struct, frozen=True, kw_only=True, tag="tool_use"):
    """A call that the client shall make; the arguments are as the model wrote them."""

    id: str
    name: str
    input: msgspec.Raw


ContentBlock = TextBlock | ThinkingBlock | ToolUseBlock


class MessageUsage(msgspec.Struct, frozen=True, kw_only=True):
    """Token counts; `input_tokens` are those that were not found in the prefix cache."""

    input_tokens: int
    cache_creation_input_tokens: int = 0
    cache_read_input_tokens: int
    output_tokens: int


class MessageReply(msgspec.Struct, frozen=True, kw_only=True):
    """The whole answer."""

    id: str
    type: Literal["message"] = "message"
    role: Literal["assistant"] = "assistant"
    model: str
    content: list[ContentBlock]
    stop_reason: StopReason | None
    stop_sequence: str | None
    usage: MessageUsage


class TokenCount(msgspec.Struct, frozen=True, kw_only=True):
    """The answer of `/v1/messages/count_tokens`."""

    input_tokens: int


class MessageStart(msgspec.Struct, frozen=True, kw_only=True, tag="message_start"):
    """The first event: a message without content."""

    message: MessageReply


class Ping(msgspec.Struct, frozen=True, kw_only=True, tag="ping"):
    """Says that the connection lives."""


class BlockStart(msgspec.Struct, frozen=True, kw_only=True, tag="content_block_start"):
    """A block begins, empty."""

    index: int
    content_block: ContentBlock


class TextDelta(msgspec.Struct, frozen=True, kw_only=True, tag="text_delta"):
    """More of a text."""

    text: str


class ThinkingDelta(msgspec.Struct, frozen=True, kw_only=True, tag="thinking_delta"):
    """More of what the model thinks."""

    thinking: str


class InputDelta(msgspec.Struct, frozen=True, kw_only=True, tag="input_json_delta"):
    """More of the JSON text of a call's arguments."""

    partial_json: str


class BlockDelta(msgspec.Struct, frozen=True, kw_only=True, tag="content_block_delta"):
    """A block goes on."""

    index: int
    delta: TextDelta | ThinkingDelta | InputDelta


class BlockStop(msgspec.Struct, frozen=True, kw_only=True, tag="content_block_stop"):
    """A block is complete."""

    index: int


class MessageEnd(msgspec.Struct, frozen=True, kw_only=True):
    """Why a message ended."""

    stop_reason: StopReason
    stop_sequence: str | None


class MessageDelta(msgspec.Struct, frozen=True, kw_only=True, tag="message_delta"):
    """The end of the message, and its usage."""

    delta: MessageEnd
    usage: MessageUsage


class MessageStop(msgspec.Struct, frozen=True, kw_only=True, tag="message_stop"):
    """The last event."""


Event = MessageStart | Ping | BlockStart | BlockDelta | BlockStop | MessageDelta | MessageStop

PING = named_event("ping", Ping())


class MessageBuilder:
    """Makes the message of one request, whole or event by event."""

    def __init__(self, stream: RequestStream, *, served_model: str) -> None:
        """Answer with the outputs of `stream`."""
        self._stream = stream
        self._id = f"msg_{secrets.token_hex(12)}"
        self._model = served_model
        self._answer = AnswerBlocks()

    async def whole(self) -> MessageReply:
        """Return the message when it is complete.

        Raises:
            ApiError: 500, the request failed; 503, the server's shutdown aborted it.
        """
        self._answer, last = await whole_answer(self._stream)
        return self._reply([_block(each) for each in self._answer.blocks], self._end(last), _usage(last))

    async def events(self) -> AsyncGenerator[bytes, None]:
        """Yield the bytes of the events, one write for each output; a failure is the last event."""
        num_prompt_tokens = len(self._stream.prompt_token_ids)
        nothing = MessageUsage(input_tokens=num_prompt_tokens, cache_read_input_tokens=0, output_tokens=0)
        yield _encode(MessageStart(message=self._reply([], None, nothing))) + PING
        try:
            async for output in self._stream:
                raise_if_unfinished(output)
                events = [_encode(event) for each in self._answer.add(output) for event in _events_of(each)]
                if output.finished:
                    end = MessageDelta(delta=self._end(output), usage=_usage(output))
                    events += [_encode(end), _encode(MessageStop())]
                if events:
                    yield b"".join(events)
        except ApiError as error:
            yield error_event(error.reply)

    def _reply(self, content: list[ContentBlock], end: MessageEnd | None, usage: MessageUsage) -> MessageReply:
        return MessageReply(
            id=self._id,
            model=self._model,
            content=content,
            stop_reason=end.stop_reason if end else None,
            stop_sequence=end.stop_sequence if end else None,
            usage=usage,
        )

    def _end(self, last: StepOutput) -> MessageEnd:
        """Return why the message ended."""
        match last.finish_reason:
            case FinishReason.LENGTH:
                return MessageEnd(stop_reason="max_tokens", stop_sequence=None)
            case FinishReason.STOP if isinstance(last.stop_reason, str):
                return MessageEnd(stop_reason="stop_sequence", stop_sequence=last.stop_reason)
            case _:
                return MessageEnd(stop_reason="tool_use" if self._answer.has_calls else "end_turn", stop_sequence=None)


def _events_of(event: BlockEvent) -> Iterator[Event]:
    index = event.block.index
    match event:
        case BlockGrown(block=block, text=text):
            match block.kind:
                case "text":
                    yield BlockDelta(index=index, delta=TextDelta(text=text))
                case "reasoning":
                    yield BlockDelta(index=index, delta=ThinkingDelta(thinking=text))
                case "tool_call":
                    yield BlockDelta(index=index, delta=InputDelta(partial_json=text))
        case BlockEnded():
            yield BlockStop(index=index)
        case _:
            yield BlockStart(index=index, content_block=_block(event.block))


def _block(block: AnswerBlock) -> ContentBlock:
    match block.kind:
        case "text":
            return TextBlock(text=block.text)
        case "reasoning":
            return ThinkingBlock(thinking=block.text)
        case "tool_call":
            call_id = block.call_id.replace("call_", "toolu_", 1)
            return ToolUseBlock(id=call_id, name=block.name, input=_input_of(block.text))


def _input_of(arguments: str) -> msgspec.Raw:
    """Return the arguments of a call; those of one that was cut off are empty."""
    try:
        found = json.loads(arguments, parse_constant=_refuse_constant)
    except (ValueError, RecursionError):
        found = None
    return msgspec.Raw(arguments if isinstance(found, dict) else "{}")


def _refuse_constant(name: str) -> NoReturn:
    """Refuse `NaN` and `Infinity`, which Python reads, though they are no JSON."""
    raise ValueError(name)


def _usage(last: StepOutput) -> MessageUsage:
    return MessageUsage(
        input_tokens=last.num_prompt_tokens - last.num_cached_tokens,
        cache_read_input_tokens=last.num_cached_tokens,
        output_tokens=last.num_completion_tokens,
    )


def _encode(event: Event) -> bytes:
    tag = type(event).__struct_config__.tag
    assert isinstance(tag, str)
    return named_event(tag, event)
