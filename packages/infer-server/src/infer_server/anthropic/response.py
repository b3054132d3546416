"""The answers of `/v1/messages`: Anthropic's message, and the events that make one up.

```
message_start, ping
  of each block: content_block_start
                   content_block_delta, ...    (more of its text, of its thinking, or of its JSON; a signature last)
                 content_block_stop
message_delta, message_stop
```
"""

import json
import secrets
from collections.abc import AsyncGenerator, Sequence
from typing import Any, Literal, NoReturn

import msgspec
from msgspec import UNSET, UnsetType

from infer_engine.protocol import FinishReason, RequestStream, StepOutput
from infer_engine.protocol.answers import AnswerBlock, AnswerBuilder, BlockEvent, BlockKind
from infer_server.anthropic.errors import error_event
from infer_server.api.carried_thinking import carried_thinking
from infer_server.api.failures import raise_if_unfinished
from infer_server.api.tools import new_call_id
from infer_server.errors import ApiError
from infer_server.http.sse import named_event

StopReason = Literal["end_turn", "max_tokens", "stop_sequence", "tool_use"]


class TextBlock(msgspec.Struct, frozen=True, kw_only=True, tag="text"):
    """A text."""

    text: str


class ThinkingBlock(msgspec.Struct, frozen=True, kw_only=True, tag="thinking"):
    """The model's thoughts. The signature carries them too: clients send back only thinking that has one."""

    thinking: str
    signature: str


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
    """The whole answer; with `return_token_ids` it has its tokens, and those of the prompt."""

    id: str
    type: Literal["message"] = "message"
    role: Literal["assistant"] = "assistant"
    model: str
    content: list[ContentBlock]
    stop_reason: StopReason | None
    stop_sequence: str | None
    usage: MessageUsage
    prompt_token_ids: list[int] | UnsetType = UNSET
    token_ids: list[int] | UnsetType = UNSET


class TokenCount(msgspec.Struct, frozen=True, kw_only=True):
    """The answer of `/v1/messages/count_tokens`."""

    input_tokens: int


class MessageEnd(msgspec.Struct, frozen=True, kw_only=True):
    """The reason why a message ended."""

    stop_reason: StopReason
    stop_sequence: str | None


class MessageBuilder:
    """Makes the message of one request, whole or event by event."""

    def __init__(
        self, *, served_model: str, prompt_token_ids: Sequence[int] | None = None, shows_thinking: bool = True
    ) -> None:
        """Begin an empty message of `served_model`; `prompt_token_ids`: of its prompt, if ids are asked for."""
        self._id = f"msg_{secrets.token_hex(12)}"
        self._model = served_model
        self._answer = AnswerBuilder()
        self._prompt_token_ids = prompt_token_ids
        self._token_ids: list[int] = []
        self._shows_thinking = shows_thinking

    def add(self, _: int, output: StepOutput) -> None:
        """Take the next output of a message that is built whole."""
        self._token_ids += output.token_ids
        self._answer.take(output)

    def build(self) -> MessageReply:
        """Return the message after its last output."""
        content = [_block(each, text=self._shown(each)) for each in self._answer.blocks]
        return msgspec.structs.replace(self._reply(content, self._end(), _usage(self._answer.last)), **self._ids())

    async def events(self, stream: RequestStream) -> AsyncGenerator[bytes, None]:
        """Yield the bytes of the events, one write for each output of `stream`; a failure is the last event."""
        num_prompt_tokens = len(stream.prompt_token_ids)
        nothing = MessageUsage(input_tokens=num_prompt_tokens, cache_read_input_tokens=0, output_tokens=0)
        yield _event("message_start", message=self._reply([], None, nothing)) + PING
        try:
            async for output in stream:
                raise_if_unfinished(output)
                self._token_ids += output.token_ids
                events = [_block_event(each) for each in self._answer.add(output) if not self._is_hidden(each)]
                if output.finished:
                    events.append(_event("message_delta", delta=self._end(), usage=_usage(output), **self._ids()))
                    events.append(_event("message_stop"))
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
            prompt_token_ids=UNSET if self._prompt_token_ids is None else list(self._prompt_token_ids),
        )

    def _is_hidden(self, change: BlockEvent) -> bool:
        return change.kind == "grow" and change.block.kind == "reasoning" and not self._shows_thinking

    def _shown(self, block: AnswerBlock) -> str:
        return "" if block.kind == "reasoning" and not self._shows_thinking else block.text

    def _ids(self) -> dict[str, list[int]]:
        """Return what the end of a message has of its tokens."""
        return {} if self._prompt_token_ids is None else {"token_ids": self._token_ids}

    def _end(self) -> MessageEnd:
        """Return why the message ended."""
        last = self._answer.last
        match last.finish_reason:
            case FinishReason.LENGTH:
                return MessageEnd(stop_reason="max_tokens", stop_sequence=None)
            case FinishReason.STOP if isinstance(last.stop_reason, str):
                return MessageEnd(stop_reason="stop_sequence", stop_sequence=last.stop_reason)
            case _:
                return MessageEnd(stop_reason="tool_use" if self._answer.calls else "end_turn", stop_sequence=None)


def _event(kind: str, /, **fields: Any) -> bytes:
    return named_event(kind, {"type": kind, **fields})


PING = _event("ping")

_DELTAS: dict[BlockKind, tuple[str, str]] = {
    "text": ("text_delta", "text"),
    "reasoning": ("thinking_delta", "thinking"),
    "tool_call": ("input_json_delta", "partial_json"),
}


def _block_event(change: BlockEvent) -> bytes:
    block = change.block
    match change.kind:
        case "start":
            return _event("content_block_start", index=block.index, content_block=_block(block, text="", signature=""))
        case "grow":
            kind, field = _DELTAS[block.kind]
            return _event("content_block_delta", index=block.index, delta={"type": kind, field: change.text})
        case "end" if block.kind == "reasoning":
            delta = {"type": "signature_delta", "signature": carried_thinking(block.text)}
            signed = _event("content_block_delta", index=block.index, delta=delta)
            return signed + _event("content_block_stop", index=block.index)
        case "end":
            return _event("content_block_stop", index=block.index)


def _block(block: AnswerBlock, *, text: str, signature: str | None = None) -> ContentBlock:
    """Return `block` with `text` as what there is of it; the `signature` of thinking carries the whole of it."""
    match block.kind:
        case "text":
            return TextBlock(text=text)
        case "reasoning":
            signed = carried_thinking(block.text) if signature is None else signature
            return ThinkingBlock(thinking=text, signature=signed)
        case "tool_call":
            return ToolUseBlock(id=new_call_id("toolu"), name=block.name, input=_input_of(text))


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
