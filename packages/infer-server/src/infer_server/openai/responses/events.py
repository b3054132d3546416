"""The answer of one request, whole or as events with OpenAI's names, each of which has a number.

```
response.created, response.in_progress
  of each item: response.output_item.added
                  response.content_part.added     (calls have no parts)
                    response.(output_text | reasoning_text | function_call_arguments).delta, ..., .done
                  response.content_part.done
                response.output_item.done
response.completed | response.incomplete | response.failed
```
"""

from collections.abc import AsyncGenerator, Iterator
from typing import Any

from infer_engine.protocol import RequestStream, StepOutput
from infer_engine.protocol.answers import AnswerBlock, BlockKind
from infer_server.api.failures import raise_if_unfinished
from infer_server.api.outputs import read_to_the_end
from infer_server.errors import ApiError, ErrorReply
from infer_server.http.sse import named_event
from infer_server.openai.responses.response import (
    CustomToolCallItem,
    FunctionCallItem,
    OutputText,
    ReasoningText,
    ResponseBuilder,
    ResponseObject,
)

# By kind of block: the name of the events about its text, and what they have beside it. An item has one part at most.
_TEXT_EVENTS: dict[BlockKind, str] = {
    "reasoning": "response.reasoning_text",
    "text": "response.output_text",
    "tool_call": "response.function_call_arguments",
}
_CUSTOM_EVENTS = "response.custom_tool_call_input"
_BESIDE_TEXT: dict[BlockKind, dict[str, Any]] = {
    "reasoning": {"content_index": 0},
    "text": {"content_index": 0, "logprobs": []},
    "tool_call": {},
}


class ResponseEvents:
    """Makes the answer of one request, whole or event by event."""

    def __init__(self, stream: RequestStream, builder: ResponseBuilder) -> None:
        """Answer with the outputs of `stream`."""
        self._stream = stream
        self._builder = builder
        self._num_events = 0

    async def whole(self) -> ResponseObject:
        """Return the response when it is complete.

        Raises:
            ApiError: 500, the request failed; 503, the server's shutdown aborted it.
        """
        await read_to_the_end([self._stream], lambda _, output: self._builder.add(output))
        return self._builder.ended()

    async def events(self) -> AsyncGenerator[bytes, None]:
        """Yield the bytes of the events: the first two at once, then one write for each output.

        A failure of the request is the last event.
        """
        begun = self._builder.begun()
        yield b"".join(self._event(name, response=begun) for name in ("response.created", "response.in_progress"))
        async for output in self._stream:
            events = b"".join(self._of_output(output))
            if events:
                yield events

    def error_event(self, reply: ErrorReply) -> bytes:
        """Return the event that ends a stream with an unexpected error."""
        error = reply.error
        return self._event("error", code=error.code, message=error.message, param=error.param)

    def _of_output(self, output: StepOutput) -> Iterator[bytes]:
        for kind, block, text in self._builder.add(output):
            if kind == "start":
                item = self._builder.begun_item(block)
                yield self._event("response.output_item.added", output_index=block.index, item=item)
                yield from self._part_event(block, "added", text="")
            elif kind == "end":
                yield from self._end(block)
            elif not self._builder.takes_text(block):  # whose arguments are no part of its text
                yield self._text_event(block, "delta", delta=text)
        if output.finished:
            yield self._last(output)

    def _end(self, block: AnswerBlock) -> Iterator[bytes]:
        item = self._builder.ended_item(block)
        match item:
            case CustomToolCallItem(input=text):
                yield self._text_event(block, "delta", delta=text)
                yield self._text_event(block, "done", input=text)
            case FunctionCallItem(name=name, arguments=arguments):
                yield self._text_event(block, "done", name=name, arguments=arguments)
            case _:
                yield self._text_event(block, "done", text=block.text)
        yield from self._part_event(block, "done", text=block.text)
        yield self._event("response.output_item.done", output_index=block.index, item=item)

    def _last(self, output: StepOutput) -> bytes:
        try:
            raise_if_unfinished(output)
        except ApiError as error:
            response = self._builder.failed(code=error.reply.error.code, message=error.reply.error.message)
        else:
            response = self._builder.ended()
        return self._event(f"response.{response.status}", response=response)

    def _text_event(self, block: AnswerBlock, change: str, /, **fields: str) -> bytes:
        place = {"item_id": self._builder.item_id(block), "output_index": block.index}
        kind = _CUSTOM_EVENTS if self._builder.takes_text(block) else _TEXT_EVENTS[block.kind]
        return self._event(f"{kind}.{change}", **place, **_BESIDE_TEXT[block.kind], **fields)

    def _part_event(self, block: AnswerBlock, change: str, *, text: str) -> Iterator[bytes]:
        if block.kind == "tool_call":
            return
        part = ReasoningText(text=text) if block.kind == "reasoning" else OutputText(text=text)
        place = {"item_id": self._builder.item_id(block), "output_index": block.index, "content_index": 0}
        yield self._event(f"response.content_part.{change}", part=part, **place)

    def _event(self, kind: str, /, **fields: Any) -> bytes:
        number, self._num_events = self._num_events, self._num_events + 1
        return named_event(kind, {"type": kind, "sequence_number": number, **fields})
