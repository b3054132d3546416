"""`AsyncEngine`: serves requests on an event loop, with a core that steps in a thread or a process.

    event loop: submit ──tokenize in a pool──> core client ══> core: step, step, step
    event loop: streams <──detokenize──call_soon_threadsafe══ one result per step

It implements the protocol `infer_engine.protocol.Engine`.
"""

import asyncio
import contextlib
import logging
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Self, TypeVar, TypeVarTuple

from msgspec import structs

from infer_engine.frontend.input_processor import InputProcessor, ProcessedInput, grammars_of
from infer_engine.frontend.streams import QueuedStream
from infer_engine.frontend.tokenizer_pool import TokenizerPool, prompt_characters
from infer_engine.ipc.core_client import ENGINE_STUCK, CoreCallbacks, CoreClient
from infer_engine.ipc.core_protocol import ended_by_text
from infer_engine.messages import Abort, Finish, Inspect, StepResult
from infer_engine.processes.watchdog import Watchdog
from infer_engine.protocol import (
    BatchSnapshot,
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
    TextPrompt,
)
from infer_engine.structured.errors import GrammarError
from infer_engine.structured.sandbox import GrammarSandbox
from infer_engine.structured.sandbox_queue import SandboxQueue, grammar_refused

logger = logging.getLogger(__name__)

CLOSE_TIMEOUT_S = 5.0
STEP_TIMEOUT_S = 300.0
_Args = TypeVarTuple("_Args")
_T = TypeVar("_T")


class AsyncEngine:
    """An engine for one event loop. The protocol documents each method."""

    def __init__(
        self,
        core_client: CoreClient,
        input_processor: InputProcessor,
        *,
        info: EngineInfo,
        stats: EngineStats,
        max_waiting_requests: int,
        step_timeout_s: float = STEP_TIMEOUT_S,
        tokenizer_pool: TokenizerPool | None = None,
        sandbox: GrammarSandbox | None = None,
    ) -> None:
        """Start the core; it sleeps until the first request.

        Args:
            core_client: connects to the core; nothing else may use it afterwards.
            input_processor: checks and tokenizes requests.
            info: a description of the loaded model.
            stats: the core's statistics before its first step.
            max_waiting_requests: how many sequences may wait for their first step; more are refused.
            step_timeout_s: seconds after which a step counts as stuck and the engine as dead.
            tokenizer_pool: tokenizes prompts; None creates a pool.
            sandbox: tries grammars before their requests are queued; with None the core alone compiles them.
        """
        self._core_client = core_client
        self._input_processor = input_processor
        self._info = info
        self._max_waiting_requests = max_waiting_requests
        self._status = EngineStatus.READY
        self._stats = stats
        self._streams: dict[str, QueuedStream] = {}
        self._waiting: set[str] = set()
        self._num_tokenizing = 0
        self._inspections: list[asyncio.Future[BatchSnapshot]] = []
        self._idle = asyncio.Event()
        self._idle.set()
        self._stopped = asyncio.Event()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._undelivered = threading.Lock()  # held while a step's result waits for the event loop: the core waits too
        self._tokenizer_pool = tokenizer_pool or TokenizerPool()
        self._sandbox = None if sandbox is None else SandboxQueue(sandbox)
        self._watchdog = Watchdog(
            timeout_s=step_timeout_s,
            step_age_s=core_client.step_age_s,
            describe_step=core_client.describe_step,
            is_needed=lambda: bool(self._streams),
            on_stuck=self._abandon_stuck_core,
        )
        core_client.start(CoreCallbacks(on_result=self._on_result, on_lost=self._on_lost, on_ended=self._on_ended))

    @property
    def info(self) -> EngineInfo:
        """A description of the loaded model."""
        return self._info

    @property
    def status(self) -> EngineStatus:
        """Whether the engine takes requests."""
        return self._status

    @property
    def stats(self) -> EngineStats:
        """Statistics after the latest step."""
        return self._stats

    async def submit(self, requests: Sequence[GenerateRequest]) -> list[RequestStream]:
        """Queue all of `requests` or none; see `infer_engine.protocol.Engine.submit`."""
        self._check_open()
        num_sequences = sum(request.params.n for request in requests)
        self._check_queue_limit(num_sequences)
        self._loop = asyncio.get_running_loop()
        arrived_s = time.monotonic()
        self._num_tokenizing += num_sequences
        try:
            processed = await self._process_inputs(requests)
            processed = await self._with_grammars_tried(processed, requests)
        finally:
            self._num_tokenizing -= num_sequences
        self._check_open()  # the engine may have been closed while the request was tokenized
        streams: list[RequestStream] = []
        try:
            for sequence in processed:
                streams.append(self._enqueue(sequence, arrived_s))  # noqa: PERF401 - the list is needed if a later one is refused
        except InvalidRequestError:  # queue all of them or none
            for stream in streams:
                stream.abort()
            raise
        return streams

    async def tokenize(self, prompt: TextPrompt, *, add_special_tokens: bool = True) -> list[int]:
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
        """Return a snapshot of the batch, taken after the current step if there is one."""
        if self._status in (EngineStatus.STOPPED, EngineStatus.DEAD):
            raise self._unavailable()
        self._loop = asyncio.get_running_loop()
        future: asyncio.Future[BatchSnapshot] = self._loop.create_future()
        self._inspections.append(future)
        self._core_client.send(Inspect())
        return await future

    async def drain(self, timeout_s: float) -> None:
        """Refuse new requests, wait up to `timeout_s` seconds for the running ones, then abort the rest."""
        if self._status is EngineStatus.READY:
            self._status = EngineStatus.DRAINING
        try:
            await asyncio.wait_for(self._idle.wait(), timeout_s)
        except TimeoutError:
            self._abort_all()

    async def __aenter__(self) -> Self:
        """Return the engine; the end of the block closes it."""
        return self

    async def __aexit__(self, *_: object) -> None:
        """Close the engine."""
        await self.close()

    async def close(self) -> None:
        """Abort all requests and stop the core."""
        if self._status is not EngineStatus.DEAD:
            self._status = EngineStatus.STOPPED
        self._loop = asyncio.get_running_loop()
        self._abort_all()
        self._refuse_inspections()
        self._watchdog.stop()
        self._core_client.stop()
        self._tokenizer_pool.shutdown()
        if self._sandbox is not None:
            self._sandbox.close()
        try:
            await asyncio.wait_for(self._stopped.wait(), CLOSE_TIMEOUT_S)
            self._core_client.join()
        except TimeoutError:
            logger.error("A step did not end within %g s and is left behind.", CLOSE_TIMEOUT_S)  # noqa: TRY400 - no traceback of ours would help
            self._core_client.abandon()
            self._status = EngineStatus.DEAD

    def abort(self, request_id: str) -> None:
        """End a request's stream with reason `abort` and free its memory; does nothing if it has ended."""
        stream = self._remove_stream(request_id)
        if stream is not None:
            self._core_client.send(Abort(request_id=request_id))
            stream.end(FinishReason.ABORT)

    def _on_result(self, result: StepResult) -> None:
        """Deliver a step's result on the event loop; another thread waits while the loop has not taken the last one."""
        if self._is_on_loop():
            self._deliver(result)
            return
        while not self._undelivered.acquire(timeout=1.0):
            if self._status in (EngineStatus.STOPPED, EngineStatus.DEAD):
                return
        self._post(self._deliver_posted, result)

    def _on_lost(self, failure: RequestFailure) -> None:
        """Tell the event loop that the core is lost."""
        self._post(self._mark_dead, failure)

    def _on_ended(self) -> None:
        """Tell the event loop that the core has ended, so that `close` returns."""
        self._post(self._stopped.set)

    def _check_queue_limit(self, num_sequences: int) -> None:
        """Refuse requests over the queue limit before they are tokenized; requests being tokenized count.

        A preempted sequence does not count: it left the queue when it was first computed.
        """
        num_waiting = len(self._waiting) + self._num_tokenizing
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

    async def _process_inputs(self, requests: Sequence[GenerateRequest]) -> list[ProcessedInput]:
        calls = [
            (
                prompt_characters(request.prompt),
                partial(self._input_processor.process, request, ids=self._input_processor.reserve_ids(request)),
            )
            for request in requests
        ]
        return [sequence for sequences in await self._tokenizer_pool.run(calls) for sequence in sequences]

    async def _with_grammars_tried(
        self, processed: list[ProcessedInput], requests: Sequence[GenerateRequest]
    ) -> list[ProcessedInput]:
        """Return the sequences of `requests`, of one body, with grammars that were found good in place of theirs."""
        grammars = grammars_of(processed)
        if self._sandbox is None or not grammars:
            return processed
        tenant, outputs = requests[0].tenant, requests[0].params.structured_outputs
        try:
            passed: dict[str | None, str] = {each: await self._sandbox.check(each, tenant=tenant) for each in grammars}
        except GrammarError as error:
            raise grammar_refused(error, outputs) from None
        return [
            replace(each, submission=structs.replace(each.submission, grammar=passed.get(each.submission.grammar)))
            for each in processed
        ]

    async def _tokenize_one(self, size: int, call: Callable[[], _T]) -> _T:
        """Run `call` in the tokenizer pool; it counts against the queue limit as a request does."""
        self._check_queue_limit(1)
        self._num_tokenizing += 1
        try:
            [result] = await self._tokenizer_pool.run([(size, call)])
        finally:
            self._num_tokenizing -= 1
        return result

    def _enqueue(self, processed: ProcessedInput, arrived_s: float) -> RequestStream:
        stream = QueuedStream(processed, arrived_s=arrived_s, abort=self.abort)
        self._core_client.send(processed.submission)
        self._streams[stream.request_id] = stream
        self._waiting.add(stream.request_id)
        self._idle.clear()
        self._watchdog.watch()
        return stream

    def _remove_stream(self, request_id: str) -> QueuedStream | None:
        stream = self._streams.pop(request_id, None)
        self._waiting.discard(request_id)
        if not self._streams:
            self._idle.set()
        return stream

    def _abort_all(self) -> None:
        for request_id in tuple(self._streams):
            self.abort(request_id)

    def _deliver_posted(self, result: StepResult) -> None:
        self._undelivered.release()
        self._deliver(result)

    def _deliver(self, result: StepResult) -> None:
        """Push one step's outputs to their streams; runs on the event loop."""
        self._stats = result.stats
        now_s = time.monotonic()
        self._record_admitted(result, now_s)
        for output in result.outputs:
            stream = self._streams.get(output.request_id)
            if stream is None:  # aborted while the step ran
                continue
            step_output = stream.push(output, now_s=now_s)
            if ended_by_text(output, step_output):
                self._core_client.send(
                    Finish(request_id=output.request_id, num_completion_tokens=step_output.num_completion_tokens)
                )
            if step_output.finished:
                self._remove_stream(output.request_id)
        if result.snapshot is not None:
            for future in self._take_inspections():
                future.set_result(result.snapshot)

    def _record_admitted(self, result: StepResult, now_s: float) -> None:
        """Record when requests left the queue: at the beginning of their first step."""
        self._waiting.difference_update(result.admitted)
        began_s = now_s - result.stats.schedule_s - result.stats.execute_s - result.stats.sample_s
        for request_id in result.admitted:
            if stream := self._streams.get(request_id):
                stream.record_admitted(began_s)

    def _take_inspections(self) -> list[asyncio.Future[BatchSnapshot]]:
        """Return the futures that wait for a snapshot, and clear the list."""
        futures, self._inspections = self._inspections, []
        return [future for future in futures if not future.done()]

    def _refuse_inspections(self) -> None:
        for future in self._take_inspections():
            future.set_exception(self._unavailable())

    def _abandon_stuck_core(self) -> None:
        self._core_client.stop()  # if the step does end, no other may follow
        self._mark_dead(ENGINE_STUCK)

    def _mark_dead(self, failure: RequestFailure) -> None:
        """End every stream with `failure`; runs on the event loop."""
        self._status = EngineStatus.DEAD
        self._refuse_inspections()
        for request_id in tuple(self._streams):
            stream = self._remove_stream(request_id)
            assert stream is not None
            stream.fail(failure)

    def _is_on_loop(self) -> bool:
        try:
            running = asyncio.get_running_loop()
        except RuntimeError:
            return False
        return self._loop in (None, running)

    def _post(self, callback: Callable[[*_Args], None], *args: *_Args) -> None:
        """Call `callback` on the event loop from another thread; call it directly before the first request."""
        if self._loop is None:
            callback(*args)
        else:
            with contextlib.suppress(RuntimeError):  # the loop is closed
                self._loop.call_soon_threadsafe(callback, *args)
