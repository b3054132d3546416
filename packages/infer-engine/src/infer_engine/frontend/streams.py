"""`QueuedStream`: the outputs of one request, queued for its reader on the event loop."""

import asyncio
from collections.abc import AsyncIterator, Callable

import msgspec

from infer_engine.frontend.input_processor import ProcessedInput
from infer_engine.ipc.messages import TokenOutput
from infer_engine.protocol import FinishReason, RequestFailure, RequestTimes, StepOutput


class QueuedStream:
    """One request's outputs. Implements `infer_engine.protocol.RequestStream`."""

    def __init__(self, prepared: ProcessedInput, *, arrived_s: float, abort: Callable[[str], None]) -> None:
        """`abort` takes the request's id, any number of times; `arrived_s` is on the event loop's clock."""
        self.prompt_token_ids = prepared.submission.prompt_token_ids
        self.times = RequestTimes(arrived_s=arrived_s)
        self._text = prepared.text
        self._abort = abort
        self._outputs: asyncio.Queue[StepOutput] = asyncio.Queue()
        self._ended = False
        self._last = StepOutput(
            request_id=prepared.submission.request_id,
            token_ids=[],
            num_prompt_tokens=len(prepared.submission.prompt_token_ids),
            num_completion_tokens=0,
        )

    @property
    def request_id(self) -> str:
        """The engine's own id."""
        return self._last.request_id

    async def __aiter__(self) -> AsyncIterator[StepOutput]:
        """Yield outputs up to the finished one; nothing more after that."""
        while not self._ended:
            output = await self._outputs.get()
            self._ended = output.finished
            yield output

    def abort(self) -> None:
        """Stop computing; see `infer_engine.protocol.RequestStream.abort`."""
        self._abort(self.request_id)

    def note_admitted(self, now_s: float) -> None:
        """Take note that the request has left the queue; only the first time counts."""
        if self.times.admitted_s is None:
            self.times.admitted_s = max(now_s, self.times.arrived_s)

    def push(self, output: TokenOutput, *, now_s: float) -> StepOutput:
        """Queue an output of the core, with its text, for the reader; return what was queued."""
        if output.token_ids:
            if self.times.first_token_s is None:
                self.times.first_token_s = now_s
            self.times.last_token_s = now_s
        self._last = self._text.advance(output)
        self._outputs.put_nowait(self._last)
        return self._last

    def end(self, finish_reason: FinishReason) -> None:
        """Queue a last output that carries no token, but the text that was held back."""
        self._put_last(text=self._text.flush(), finish_reason=finish_reason)

    def fail(self, error: RequestFailure) -> None:
        """Queue a last output that says why there is no more."""
        self._put_last(error=error)

    def _put_last(
        self, *, text: str = "", finish_reason: FinishReason | None = None, error: RequestFailure | None = None
    ) -> None:
        last = msgspec.structs.replace(
            self._last,
            token_ids=[],
            text=text,
            finished=True,
            finish_reason=finish_reason,
            error=error,
            logprobs=None,
            prompt_logprobs=None,
        )
        self._outputs.put_nowait(last)
