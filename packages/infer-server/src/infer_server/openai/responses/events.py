"""The events of a streamed response, each with a name and a number."""

from collections.abc import AsyncGenerator, Iterator
from typing import Any

import msgspec

from infer_engine.protocol import RequestStream, StepOutput
from infer_server.errors import ApiError
from infer_server.generation.answer_blocks import (
    AnswerBlock,
    AnswerBlocks,
    BlockEnded,
    BlockEvent,
    BlockGrown,
    whole_answer,
)
from infer_server.generation.failures import raise_if_unfinished
from infer_server.openai.responses.response import (
    ItemIds,
    OutputText,
    ReasoningText,
    ResponseBuilder,
    ResponseObject,
    output_item,
)

_TEXT_EVENTS = {
    "text": "response.output_text",
    "reasoning": "response.reasoning_text",
    "tool_call": "response.function_call_arguments",
}


class ResponseEvents:
    """Makes the answer of one request, whole or event by event."""

    def __init__(self, stream: RequestStream, builder: ResponseBuilder) -> None:
        """Answer with the outputs of `stream`."""
        self._stream = stream
        self._builder = builder
        self._answer = AnswerBlocks()
        self._ids = ItemIds()
        self._num_events = 0

    async def whole(self) -> ResponseObject:
        """Return the response when it is complete.

        Raises:
            ApiError: 500, the request failed; 503, the server's shutdown aborted it.
        """
        answer, last = await whole_answer(self._stream)
        return self._builder.ended(answer.blocks, last, self._ids)

    async def events(self) -> AsyncGenerator[bytes, None]:
        """Yield the bytes of the events, one write for each output; a failure is the last event."""
        begun = self._builder.begun()
        yield self._event("response.created", response=begun) + self._event("response.in_progress", response=begun)
        last: StepOutput | None = None
        try:
            async for output in self._stream:
                raise_if_unfinished(output)
                last = output
                is_cut = output.finished and output.finish_reason == "length"
                events = [
                    encoded for event in self._answer.add(output) for encoded in self._of_block(event, is_cut=is_cut)
                ]
                if events:
                    yield b"".join(events)
        except ApiError as error:
            reply = error.reply.error
            failed = self._builder.failed(code=reply.code, message=reply.message)
            yield self._event("response.failed", response=failed)
            return
        assert last is not None
        response = self._builder.ended(self._answer.blocks, last, self._ids)
        yield self._event(f"response.{response.status}", response=response)

    def error_event(self, error: Any) -> bytes:
        """Return the event that ends a stream with an unexpected error."""
        body = error.error
        return self._event("error", code=body.code, message=body.message, param=body.param)

    def _of_block(self, event: BlockEvent, *, is_cut: bool) -> Iterator[bytes]:
        block = event.block
        place = {"item_id": self._ids.of(block), "output_index": block.index}
        if block.kind != "tool_call":
            place["content_index"] = 0
        match event:
            case BlockGrown(text=text):
                extra: dict[str, Any] = {"logprobs": []} if block.kind == "text" else {}
                yield self._event(f"{_TEXT_EVENTS[block.kind]}.delta", delta=text, **place, **extra)
            case BlockEnded():
                yield from self._end_of(block, place, is_cut=is_cut)
            case _:
                item = output_item(block, self._ids, status="in_progress")
                yield self._event("response.output_item.added", output_index=block.index, item=item)
                if block.kind != "tool_call":
                    yield self._event("response.content_part.added", part=_part(block), **place)

    def _end_of(self, block: AnswerBlock, place: dict[str, Any], *, is_cut: bool) -> Iterator[bytes]:
        name = f"{_TEXT_EVENTS[block.kind]}.done"
        if block.kind == "tool_call":
            yield self._event(name, arguments=block.text, name=block.name, **place)
        else:
            extra: dict[str, Any] = {"logprobs": []} if block.kind == "text" else {}
            yield self._event(name, text=block.text, **place, **extra)
            yield self._event("response.content_part.done", part=_part(block), **place)
        item = output_item(block, self._ids, status="incomplete" if is_cut else "completed")
        yield self._event("response.output_item.done", output_index=block.index, item=item)

    def _event(self, kind: str, /, **fields: Any) -> bytes:
        data = msgspec.json.encode({"type": kind, "sequence_number": self._num_events, **fields})
        self._num_events += 1
        return b"event: %s\ndata: %s\n\n" % (kind.encode(), data)


def _part(block: AnswerBlock) -> OutputText | ReasoningText:
    return OutputText(text=block.text) if block.kind == "text" else ReasoningText(text=block.text)
