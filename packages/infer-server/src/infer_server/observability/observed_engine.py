"""`ObservedEngine`: wraps an engine and measures its requests."""

from collections.abc import AsyncIterator, Sequence
from weakref import WeakValueDictionary

from infer_engine.protocol import (
    BatchSnapshot,
    Engine,
    EngineInfo,
    EngineStats,
    EngineStatus,
    FinishReason,
    GenerateRequest,
    RequestStream,
    RequestTimes,
    StepOutput,
    TextPrompt,
)
from infer_server.observability.request_metrics import RequestMetrics


class _Choices:
    """The choices of one prompt: how many have not ended, and the most tokens of one."""

    __slots__ = ("_metrics", "_most_tokens", "_num_open")

    def __init__(self, num_choices: int, *, metrics: RequestMetrics) -> None:
        self._num_open = num_choices
        self._most_tokens = 0
        self._metrics = metrics

    def record_end(self, num_tokens: int = 0) -> None:
        """Record that a choice has ended; `num_tokens` are its tokens if it finished."""
        self._num_open -= 1
        self._most_tokens = max(self._most_tokens, num_tokens)
        if self._num_open == 0 and self._most_tokens > 0:
            self._metrics.record_choices_finished(self._most_tokens)


class ObservedStream:
    """Wraps a stream and measures its outputs. A `RequestStream`.

    Attributes:
        is_first_choice: whether it is the first choice of its prompt.
        last: the latest output that was read; None before the first.
    """

    __slots__ = (
        "__weakref__",
        "_choices",
        "_is_over",
        "_metrics",
        "_next",
        "_observe_s",
        "_stream",
        "_times",
        "_token_s",
        "is_first_choice",
        "last",
    )

    def __init__(
        self, stream: RequestStream, *, metrics: RequestMetrics, choices: _Choices, is_first_choice: bool
    ) -> None:
        """Measure `stream`, one of `choices`; it must have no other reader."""
        self.is_first_choice = is_first_choice
        self.last: StepOutput | None = None
        self._stream = stream
        self._times = stream.times
        self._choices = choices
        self._metrics = metrics
        self._observe_s = metrics.observe_inter_token_s
        self._token_s: float | None = None
        self._is_over = False
        self._next = aiter(stream).__anext__

    @property
    def request_id(self) -> str:
        """The engine's own id."""
        return self._stream.request_id

    @property
    def prompt_token_ids(self) -> list[int]:
        """The prompt's tokens."""
        return self._stream.prompt_token_ids

    @property
    def times(self) -> RequestTimes:
        """The times of the request."""
        return self._times

    def __aiter__(self) -> AsyncIterator[StepOutput]:
        """Return itself: a stream has one reader."""
        return self

    async def __anext__(self) -> StepOutput:
        """Return the next output, and measure it."""
        output = await self._next()
        self.last = output
        if output.token_ids:
            if self._token_s is None:
                self._metrics.record_first_token(self._times)
                self._token_s = self._times.first_token_s
            else:
                # `last_token_s` may be ahead of a slow reader: then the next intervals are zero, and the sum is right.
                token_s = self._times.last_token_s or self._token_s
                self._observe_s(token_s - self._token_s)
                self._token_s = token_s
        if output.finished:
            self._record_end(output)
        return output

    def abort(self) -> None:
        """Abort the request, and count the abort unless it had ended."""
        self._stream.abort()
        if not self._is_over:
            self._is_over = True
            self._metrics.record_abort()
            self._choices.record_end()

    def _record_end(self, output: StepOutput) -> None:
        if self._is_over:
            return
        self._is_over = True
        if output.error is not None:
            self._metrics.record_failure(output.error.code)
            self._choices.record_end()
        elif output.finish_reason is None or output.finish_reason is FinishReason.ABORT:
            self._metrics.record_abort()
            self._choices.record_end()
        else:
            self._metrics.record_finish(output.finish_reason, output, self._times)
            self._choices.record_end(output.num_completion_tokens)


class ObservedEngine:
    """Wraps an engine and measures requests to it. An `infer_engine.protocol.Engine`."""

    def __init__(self, engine: Engine, metrics: RequestMetrics) -> None:
        """The caller drains and closes `engine`."""
        self._engine = engine
        self._metrics = metrics
        self._streams: WeakValueDictionary[str, ObservedStream] = WeakValueDictionary()

    @property
    def info(self) -> EngineInfo:
        """The model that was loaded."""
        return self._engine.info

    @property
    def status(self) -> EngineStatus:
        """Whether it takes requests."""
        return self._engine.status

    @property
    def stats(self) -> EngineStats:
        """The latest snapshot."""
        return self._engine.stats

    async def submit(self, requests: Sequence[GenerateRequest]) -> list[RequestStream]:
        """Submit `requests`, and measure their streams; see `infer_engine.protocol.Engine.submit`."""
        streams = iter(await self._engine.submit(requests))
        observed: list[RequestStream] = []
        for request in requests:
            self._metrics.record_accepted(request.params)
            choices = _Choices(request.params.n, metrics=self._metrics)
            for choice in range(request.params.n):
                stream = ObservedStream(
                    next(streams), metrics=self._metrics, choices=choices, is_first_choice=choice == 0
                )
                self._streams[stream.request_id] = stream
                observed.append(stream)
        return observed

    def observed(self, request_id: str) -> ObservedStream | None:
        """Return the stream with this id that `submit` returned, or None if it was garbage-collected."""
        return self._streams.get(request_id)

    async def tokenize(self, prompt: TextPrompt, *, add_special_tokens: bool = True) -> list[int]:
        """Return the token ids of `prompt`."""
        return await self._engine.tokenize(prompt, add_special_tokens=add_special_tokens)

    async def detokenize(self, token_ids: list[int]) -> str:
        """Return the text of `token_ids`."""
        return await self._engine.detokenize(token_ids)

    def token_bytes(self, token_id: int) -> bytes:
        """Return the bytes of a token."""
        return self._engine.token_bytes(token_id)

    async def inspect(self) -> BatchSnapshot:
        """Return what the engine is doing."""
        return await self._engine.inspect()

    async def drain(self, timeout_s: float) -> None:
        """Drain the wrapped engine."""
        await self._engine.drain(timeout_s)

    async def close(self) -> None:
        """Close the wrapped engine."""
        await self._engine.close()
