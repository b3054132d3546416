"""`QueuedStream`: queues the outputs of one request for its reader on the event loop."""

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Self

import msgspec

from infer_engine.frontend.input_processor import ProcessedInput
from infer_engine.messages import TokenOutput
from infer_engine.protocol import AnswerDelta, FinishReason, RequestFailure, RequestTimes, StepOutput


class QueuedStream:
    """The outputs of one request. Implements `infer_engine.protocol.RequestStream`."""

    def __init__(self, processed: ProcessedInput, *, arrived_s: float, abort: Callable[[str], None]) -> None:
        """`abort` ends the request with the given id and may be called repeatedly; `arrived_s` is `time.monotonic`."""
        self.prompt_token_ids = processed.submission.prompt_token_ids
        self.times = RequestTimes(arrived_s=arrived_s)
        self._output_processor = processed.output_processor
        self._abort = abort
        self._outputs: deque[StepOutput] = deque()
        self._reader: asyncio.Future[None] | None = None  # what waits for the next output
        self._ended = False
        self._last = StepOutput(
            request_id=processed.submission.request_id,
            token_ids=[],
            num_prompt_tokens=len(processed.submission.prompt_token_ids),
            num_completion_tokens=0,
        )

    @property
    def request_id(self) -> str:
        """The engine's own id."""
        return self._last.request_id

    def __aiter__(self) -> Self:
        """Return itself: a stream has one reader."""
        return self

    async def __anext__(self) -> StepOutput:
        """Return the next output; the finished one is the last."""
        if self._ended:
            raise StopAsyncIteration
        while not self._outputs:
            self._reader = asyncio.get_running_loop().create_future()
            await self._reader
        output = self._outputs.popleft()
        self._ended = output.finished
        return output

    def abort(self) -> None:
        """Abort the request; see `infer_engine.protocol.RequestStream.abort`."""
        self._abort(self.request_id)

    def record_admitted(self, now_s: float) -> None:
        """Record when the request left the queue; only the first call counts."""
        if self.times.admitted_s is None:
            self.times.admitted_s = max(now_s, self.times.arrived_s)

    def push(self, output: TokenOutput, *, now_s: float) -> StepOutput:
        """Add text to an output of the core, queue it for the reader, and return it."""
        if output.token_ids:
            if self.times.first_token_s is None:
                self.times.first_token_s = now_s
            self.times.last_token_s = now_s
        self._last = self._output_processor.process(output)
        self._put(self._last)
        return self._last

    def end(self, finish_reason: FinishReason) -> None:
        """Queue a last output without tokens, with the text that was held back."""
        text, deltas = self._output_processor.flush()
        self._put_last(text=text, deltas=deltas, finish_reason=finish_reason)

    def fail(self, error: RequestFailure) -> None:
        """Queue a last output with `error`."""
        self._put_last(error=error)

    def _put_last(
        self,
        *,
        text: str = "",
        deltas: list[AnswerDelta] | None = None,
        finish_reason: FinishReason | None = None,
        error: RequestFailure | None = None,
    ) -> None:
        last = msgspec.structs.replace(
            self._last,
            token_ids=[],
            text=text,
            deltas=deltas,
            finished=True,
            finish_reason=finish_reason,
            error=error,
            logprobs=None,
            prompt_logprobs=None,
        )
        self._put(last)

    def _put(self, output: StepOutput) -> None:
        self._outputs.append(output)
        if self._reader is not None and not self._reader.done():
            self._reader.set_result(None)
