"""The answer of one request, whole or as events with OpenAI's names, each of which has a number.

```
response.created, response.in_progress
  of each item: response.output_item.added
                  response.(content_part | reasoning_summary_part).added     (calls have no parts)
                    response.(output_text | reasoning_text | reasoning_summary_text | ...).delta, ..., .done
                  response.(content_part | reasoning_summary_part).done
                response.output_item.done
response.completed | response.incomplete | response.failed
```
"""

from collections.abc import AsyncGenerator, Callable, Iterator, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

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
    SummaryText,
)


class _EventKind(NamedTuple):
    """The names of the events about the text of a block and about its part, of which an item has one at most.

    Attributes:
        text: the name of those about its text.
        part: the name of those about its part; "": it has none.
        part_type: the type of its part.
        part_index: the number of the part, for both.
        beside: what those about its text have too.
    """

    text: str
    part: str = ""
    part_type: type[ReasoningText | OutputText | SummaryText] = OutputText
    part_index: Mapping[str, int] = MappingProxyType({})
    beside: Mapping[str, Any] = MappingProxyType({})


_KINDS: dict[BlockKind, _EventKind] = {
    "reasoning": _EventKind("response.reasoning_text", "response.content_part", ReasoningText, {"content_index": 0}),
    "text": _EventKind(
        "response.output_text", "response.content_part", OutputText, {"content_index": 0}, {"logprobs": []}
    ),
    "tool_call": _EventKind("response.function_call_arguments"),
}
_SUMMARY = _EventKind(
    "response.reasoning_summary_text", "response.reasoning_summary_part", SummaryText, {"summary_index": 0}
)
_CUSTOM = _EventKind("response.custom_tool_call_input")


class ResponseEvents:
    """Makes the answer of one request, whole or event by event."""

    def __init__(
        self, stream: RequestStream, builder: ResponseBuilder, *, keep: Callable[[ResponseObject], None]
    ) -> None:
        """Answer with the outputs of `stream`; `keep` gets the response when it is complete."""
        self._stream = stream
        self._builder = builder
        self._keep = keep
        self._num_events = 0

    async def whole(self) -> ResponseObject:
        """Return the response when it is complete.

        Raises:
            ApiError: 500, the request failed; 503, the server's shutdown aborted it.
        """
        await read_to_the_end([self._stream], lambda _, output: self._builder.add(output))
        return self._ended()

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
            response = self._builder.failed(error.reply.error.message)
        else:
            response = self._ended()
        return self._event(f"response.{response.status}", response=response)

    def _ended(self) -> ResponseObject:
        response = self._builder.ended()
        self._keep(response)
        return response

    def _text_event(self, block: AnswerBlock, change: str, /, **fields: str) -> bytes:
        kind = self._kind(block)
        return self._event(f"{kind.text}.{change}", **self._place(block), **kind.beside, **fields)

    def _part_event(self, block: AnswerBlock, change: str, *, text: str) -> Iterator[bytes]:
        kind = self._kind(block)
        if kind.part:
            part = kind.part_type(text=text)
            yield self._event(f"{kind.part}.{change}", part=part, **self._place(block))

    def _kind(self, block: AnswerBlock) -> _EventKind:
        if block.kind == "reasoning" and self._builder.summarizes:
            return _SUMMARY
        return _CUSTOM if self._builder.takes_text(block) else _KINDS[block.kind]

    def _place(self, block: AnswerBlock) -> dict[str, Any]:
        place = {"item_id": self._builder.item_id(block), "output_index": block.index}
        return {**place, **self._kind(block).part_index}

    def _event(self, kind: str, /, **fields: Any) -> bytes:
        number, self._num_events = self._num_events, self._num_events + 1
        return named_event(kind, {"type": kind, "sequence_number": number, **fields})
