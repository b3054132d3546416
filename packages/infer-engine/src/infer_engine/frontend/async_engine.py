"""`AsyncEngine`: the front on the caller's event loop, in front of a core that steps in a thread or a process.

    event loop: submit ──tokenize in a pool──> link ══> core: step, step, step
    event loop: streams <──detokenize──call_soon_threadsafe══ one result per step

Knows the event loop and the protocol; knows no tensors, no socket and no HTTP.
"""

import asyncio
import contextlib
import logging
import threading
from collections.abc import Callable, Sequence
from functools import partial
from typing import Self, TypeVar, TypeVarTuple

from infer_engine.frontend.input_processor import InputProcessor, ProcessedInput, prompt_characters
from infer_engine.frontend.streams import QueuedStream
from infer_engine.frontend.tokenizer_pool import TokenizerPool
from infer_engine.frontend.watchdog import Watchdog
from infer_engine.ipc.core_client import ENGINE_STUCK, CoreCallbacks, CoreClient
from infer_engine.ipc.core_protocol import ended_by_text
from infer_engine.ipc.messages import Abort, Finish, Inspect, StepResult
from infer_engine.protocol import (
    BatchSnapshot,
    ChatPrompt,
    EngineInfo,
    EngineStats,
    EngineStatus,
    EngineUnavailableError,
    FinishReason,
    GenerateRequest,
    InvalidRequestError,
    QueueFullError,
    RequestFailure,
    RequestStream,
)

logger = logging.getLogger(__name__)

CLOSE_TIMEOUT_S = 5.0
STEP_TIMEOUT_S = 300.0
MAX_UNDELIVERED_RESULTS = 1
"""Steps that a core may be ahead of the event loop; then it waits."""

_Args = TypeVarTuple("_Args")
_T = TypeVar("_T")


class AsyncEngine:
    """An engine for one event loop. Implements `infer_engine.protocol.Engine`; see there for each method."""

    def __init__(
        self,
        core_client: CoreClient,
        input_processor: InputProcessor,
        *,
        info: EngineInfo,
        stats: EngineStats,
        max_waiting_requests: int,
        step_timeout_s: float = STEP_TIMEOUT_S,
        tokenizers: TokenizerPool | None = None,
    ) -> None:
        """Start the core; it sleeps until the first request.

        Args:
            core_client: the way to the core; nothing else may use it from here on.
            input_processor: checks and tokenizes requests.
            info: what was loaded.
            stats: of the core before its first step.
            max_waiting_requests: sequences that may wait to be computed for the first time; more are refused.
            step_timeout_s: a step that takes longer is stuck: the engine is dead then.
            tokenizers: where prompts are tokenized; None: threads of its own.
        """
        self._core_client = core_client
        self._input_processor = input_processor
        self._info = info
        self._max_waiting_requests = max_waiting_requests
        self._status = EngineStatus.READY
        self._stats = stats
        self._streams: dict[str, QueuedStream] = {}
        self._waiting: set[str] = set()
        self._num_preparing = 0
        self._inspections: list[asyncio.Future[BatchSnapshot]] = []
        self._idle = asyncio.Event()
        self._idle.set()
        self._stopped = asyncio.Event()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._room = threading.Semaphore(MAX_UNDELIVERED_RESULTS)
        self._tokenizers = tokenizers or TokenizerPool()
        self._watchdog = Watchdog(
            timeout_s=step_timeout_s,
            step_age_s=core_client.step_age_s,
            describe_step=core_client.describe_step,
            is_needed=lambda: bool(self._streams),
            on_stuck=self._give_up_stuck_core,
        )
        core_client.start(CoreCallbacks(on_result=self._on_result, on_lost=self._on_lost, on_ended=self._on_ended))

    @property
    def info(self) -> EngineInfo:
        """What was loaded."""
        return self._info

    @property
    def status(self) -> EngineStatus:
        """Whether it takes requests."""
        return self._status

    @property
    def stats(self) -> EngineStats:
        """The snapshot after the latest step."""
        return self._stats

    async def submit(self, requests: Sequence[GenerateRequest]) -> list[RequestStream]:
        """Queue all of `requests` or none; see `infer_engine.protocol.Engine.submit`."""
        self._check_open()
        num_sequences = sum(request.params.n for request in requests)
        self._check_room(num_sequences)
        self._loop = asyncio.get_running_loop()
        arrived_s = self._loop.time()
        self._num_preparing += num_sequences
        try:
            prepared = await self._prepare(requests)
        finally:
            self._num_preparing -= num_sequences
        self._check_open()  # the engine may have gone while the request was tokenized
        streams: list[RequestStream] = []
        try:
            for sequence in prepared:
                streams.append(self._enqueue(sequence, arrived_s))  # noqa: PERF401 - those before a refusal are needed
        except InvalidRequestError:  # all of them or none
            for stream in streams:
                stream.abort()
            raise
        return streams

    async def tokenize(self, prompt: str | ChatPrompt, *, add_special_tokens: bool = True) -> list[int]:
        """Return the token ids of `prompt`; see `infer_engine.protocol.Engine.tokenize`."""
        call = partial(self._input_processor.tokenize, prompt, add_special_tokens=add_special_tokens)
        return await self._tokenize_one(prompt_characters(prompt), call)

    async def detokenize(self, token_ids: list[int]) -> str:
        """Return the text of `token_ids`; see `infer_engine.protocol.Engine.detokenize`."""
        return await self._tokenize_one(len(token_ids), partial(self._input_processor.detokenize, token_ids))

    def token_bytes(self, token_id: int) -> bytes:
        """Return the bytes that a token stands for."""
        return self._input_processor.token_bytes(token_id)

    async def inspect(self) -> BatchSnapshot:
        """Return what the core is doing, after the step under way if there is one."""
        if self._status in (EngineStatus.STOPPED, EngineStatus.DEAD):
            raise self._unavailable()
        self._loop = asyncio.get_running_loop()
        asked: asyncio.Future[BatchSnapshot] = self._loop.create_future()
        self._inspections.append(asked)
        self._core_client.send(Inspect())
        return await asked

    async def drain(self, timeout_s: float) -> None:
        """Take no new requests and wait for the running ones, at most `timeout_s` seconds; abort the rest."""
        if self._status is EngineStatus.READY:
            self._status = EngineStatus.DRAINING
        try:
            await asyncio.wait_for(self._idle.wait(), timeout_s)
        except TimeoutError:
            self._abort_all()

    async def __aenter__(self) -> Self:
        """Return the engine, to be closed at the end of the block."""
        return self

    async def __aexit__(self, *_: object) -> None:
        """Close the engine."""
        await self.close()

    async def close(self) -> None:
        """Abort everything and end the core."""
        if self._status is not EngineStatus.DEAD:
            self._status = EngineStatus.STOPPED
        self._loop = asyncio.get_running_loop()
        self._abort_all()
        self._refuse_inspections()
        self._watchdog.stop()
        self._core_client.stop()
        self._tokenizers.shutdown()
        try:
            await asyncio.wait_for(self._stopped.wait(), CLOSE_TIMEOUT_S)
            self._core_client.join()
        except TimeoutError:
            logger.error("A step did not end within %g s and is left behind.", CLOSE_TIMEOUT_S)  # noqa: TRY400 - no traceback of ours would help
            self._core_client.abandon()
            self._status = EngineStatus.DEAD

    def abort(self, request_id: str) -> None:
        """End a request's stream with reason `abort` and free its memory; one that ended already is left alone."""
        stream = self._forget(request_id)
        if stream is not None:
            self._core_client.send(Abort(request_id=request_id))
            stream.end(FinishReason.ABORT)

    def _on_result(self, result: StepResult) -> None:
        """Take what a step made to the event loop; waits while that is far behind."""
        while not self._room.acquire(timeout=1.0):
            if self._status in (EngineStatus.STOPPED, EngineStatus.DEAD):
                return
        self._post(self._deliver, result)

    def _on_lost(self, failure: RequestFailure) -> None:
        """Take to the event loop that the core is gone."""
        self._post(self._die, failure)

    def _on_ended(self) -> None:
        """Let `close` return."""
        self._post(self._stopped.set)

    def _check_room(self, num_sequences: int) -> None:
        """Refuse what the queue cannot take before anybody tokenizes it; those being tokenized have their place.

        Sequences that were computed once and wait again for want of memory have left the queue for good.
        """
        num_waiting = len(self._waiting) + self._num_preparing
        if num_sequences > self._max_waiting_requests:
            raise InvalidRequestError(
                f"The request asks for {num_sequences} sequences (prompts times `n`) and `max_waiting_requests` is "
                f"{self._max_waiting_requests}; send fewer at once.",
                param="prompt",
            )
        if num_waiting + num_sequences > self._max_waiting_requests:
            raise QueueFullError(
                f"{num_waiting} requests wait and `max_waiting_requests` is {self._max_waiting_requests}; "
                "try again later."
            )

    def _check_open(self) -> None:
        if self._status is not EngineStatus.READY:
            raise self._unavailable()

    def _unavailable(self) -> EngineUnavailableError:
        return EngineUnavailableError(f"The engine is {self._status}; it takes no new requests.")

    async def _prepare(self, requests: Sequence[GenerateRequest]) -> list[ProcessedInput]:
        calls = [
            (
                prompt_characters(request.prompt),
                partial(self._input_processor.prepare, request, ids=self._input_processor.reserve_ids(request)),
            )
            for request in requests
        ]
        return [sequence for sequences in await self._tokenizers.run(calls) for sequence in sequences]

    async def _tokenize_one(self, size: int, call: Callable[[], _T]) -> _T:
        """Call in the tokenizers' threads, for which it waits in line with the prompts of requests."""
        self._check_room(1)
        self._num_preparing += 1
        try:
            [result] = await self._tokenizers.run([(size, call)])
        finally:
            self._num_preparing -= 1
        return result

    def _enqueue(self, prepared: ProcessedInput, arrived_s: float) -> RequestStream:
        stream = QueuedStream(prepared, arrived_s=arrived_s, abort=self.abort)
        self._core_client.send(prepared.submission)
        self._streams[stream.request_id] = stream
        self._waiting.add(stream.request_id)
        self._idle.clear()
        self._watchdog.watch()
        return stream

    def _forget(self, request_id: str) -> QueuedStream | None:
        stream = self._streams.pop(request_id, None)
        self._waiting.discard(request_id)
        if not self._streams:
            self._idle.set()
        return stream

    def _abort_all(self) -> None:
        for request_id in tuple(self._streams):
            self.abort(request_id)

    def _deliver(self, result: StepResult) -> None:
        """Hand one step's outputs to their streams; runs on the event loop."""
        self._room.release()
        self._stats = result.stats
        now_s = 0.0 if self._loop is None else self._loop.time()
        self._note_admitted(result, now_s)
        for output in result.outputs:
            stream = self._streams.get(output.request_id)
            if stream is None:  # aborted while the step ran: the token is nobody's
                continue
            made = stream.push(output, now_s=now_s)
            if ended_by_text(output, made):
                self._core_client.send(
                    Finish(request_id=output.request_id, num_completion_tokens=made.num_completion_tokens)
                )
            if made.finished:
                self._forget(output.request_id)
        if result.snapshot is not None:
            for asked in self._take_inspections():
                asked.set_result(result.snapshot)

    def _note_admitted(self, result: StepResult, now_s: float) -> None:
        """A request leaves the queue when its first step begins, not when that is done."""
        self._waiting.difference_update(result.admitted)
        began_s = now_s - result.stats.schedule_s - result.stats.execute_s - result.stats.sample_s
        for request_id in result.admitted:
            if stream := self._streams.get(request_id):
                stream.note_admitted(began_s)

    def _take_inspections(self) -> list[asyncio.Future[BatchSnapshot]]:
        """Return who waits for a snapshot, and forget them."""
        asked, self._inspections = self._inspections, []
        return [future for future in asked if not future.done()]

    def _refuse_inspections(self) -> None:
        for asked in self._take_inspections():
            asked.set_exception(self._unavailable())

    def _give_up_stuck_core(self) -> None:
        self._core_client.stop()  # should the step end after all: nobody wants another
        self._die(ENGINE_STUCK)

    def _die(self, failure: RequestFailure) -> None:
        """Tell every stream that no more will come; runs on the event loop."""
        self._status = EngineStatus.DEAD
        self._refuse_inspections()
        for request_id in tuple(self._streams):
            stream = self._forget(request_id)
            assert stream is not None
            stream.fail(failure)

    def _post(self, callback: Callable[[*_Args], None], *args: *_Args) -> None:
        """Call back on the event loop, from another thread; without one there is nobody to disturb."""
        if self._loop is None:
            callback(*args)
        else:
            with contextlib.suppress(RuntimeError):  # the loop is closed: nobody is left to hear of it
                self._loop.call_soon_threadsafe(callback, *args)
