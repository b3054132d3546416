"""`ThreadedEngine`: the core steps in a thread of its own; its front lives on the caller's event loop.

    event loop: submit ──tokenize in a pool──> inbox ══> core thread: step, step, step
    event loop: streams <──detokenize──call_soon_threadsafe══ one result per step

Knows threads, queues and the protocol; knows no tensors and no HTTP.
"""

import asyncio
import contextlib
import logging
import queue
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import BrokenExecutor, Executor, ThreadPoolExecutor
from functools import partial
from typing import TypeVarTuple

from infer_engine.front import Front, PreparedSequence
from infer_engine.messages import Abort, Finish, StepResult, ToCore
from infer_engine.protocol import (
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
from infer_engine.stepping import SteppingCore, ends_unknown_to_the_core
from infer_engine.streams import QueuedStream
from infer_engine.watchdog import Watchdog

logger = logging.getLogger(__name__)

NUM_TOKENIZER_THREADS = 2
CLOSE_TIMEOUT_S = 5.0
STEP_TIMEOUT_S = 300.0
# A wait for messages that ends by itself: locks refuse waits of years.
MAX_WAIT_S = 3600.0

ENGINE_DEAD = RequestFailure(message="The engine failed; its log has the cause.", code="engine_dead")
ENGINE_STUCK = RequestFailure(message="The engine is stuck in a step; its log says where.", code="engine_stuck")

_Args = TypeVarTuple("_Args")


class _Stop:
    """Tells the core's thread to end."""


def tokenizer_threads() -> Executor:
    """Return the threads that tokenize prompts."""
    return ThreadPoolExecutor(NUM_TOKENIZER_THREADS, thread_name_prefix="infer-tokenize")


class ThreadedEngine:
    """An engine for one event loop. Implements `infer_engine.protocol.Engine`; see there for each method."""

    def __init__(
        self,
        core: SteppingCore,
        front: Front,
        *,
        info: EngineInfo,
        max_waiting_requests: int,
        step_timeout_s: float = STEP_TIMEOUT_S,
        clock: Callable[[], float] = time.monotonic,
        make_tokenizers: Callable[[], Executor] = tokenizer_threads,
    ) -> None:
        """Start the core's thread; it sleeps until the first request.

        Args:
            core: steps in that thread from here on; nobody else may touch it.
            front: checks requests and makes their text.
            info: what was loaded.
            max_waiting_requests: sequences that may wait to be computed for the first time; more are refused.
            step_timeout_s: a step that takes longer by `clock` is stuck: the engine is dead then.
            clock: seconds that never go back.
            make_tokenizers: makes the executor that tokenizes; called again where that one breaks.
        """
        self._front = front
        self._info = info
        self._max_waiting_requests = max_waiting_requests
        self._status = EngineStatus.READY
        self._stats = core.stats
        self._streams: dict[str, QueuedStream] = {}
        self._waiting: set[str] = set()
        self._num_preparing = 0
        self._idle = asyncio.Event()
        self._idle.set()
        self._stopped = asyncio.Event()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._inbox: queue.SimpleQueue[ToCore | _Stop] = queue.SimpleQueue()
        self._make_tokenizers = make_tokenizers
        self._tokenizers = make_tokenizers()
        self._watchdog = Watchdog(
            timeout_s=step_timeout_s,
            clock=clock,
            is_needed=lambda: bool(self._streams),
            on_stuck=partial(self._die, ENGINE_STUCK),
        )
        self._thread = threading.Thread(target=self._run, args=(core,), name="infer-core", daemon=True)
        self._thread.start()

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
        self._num_preparing += num_sequences
        try:
            prepared = await self._prepare(requests)
        finally:
            self._num_preparing -= num_sequences
        self._check_open()  # the engine may have gone while the request was tokenized
        return [self._enqueue(sequence) for sequence in prepared]

    async def drain(self, timeout_s: float) -> None:
        """Take no new requests and wait for the running ones, at most `timeout_s` seconds; abort the rest."""
        if self._status is EngineStatus.READY:
            self._status = EngineStatus.DRAINING
        try:
            await asyncio.wait_for(self._idle.wait(), timeout_s)
        except TimeoutError:
            self._abort_all()

    async def close(self) -> None:
        """Abort everything and end the core's thread."""
        if self._status is not EngineStatus.DEAD:
            self._status = EngineStatus.STOPPED
        self._loop = asyncio.get_running_loop()
        self._abort_all()
        self._watchdog.stop()
        self._inbox.put(_Stop())
        self._tokenizers.shutdown(wait=False, cancel_futures=True)
        try:
            await asyncio.wait_for(self._stopped.wait(), CLOSE_TIMEOUT_S)
            self._thread.join()  # it has nothing left to do; a process must not end while torch's thread does
        except TimeoutError:
            logger.error("A step did not end within %g s and is left behind.", CLOSE_TIMEOUT_S)  # noqa: TRY400 - no traceback of ours would help
            self._status = EngineStatus.DEAD

    def abort(self, request_id: str) -> None:
        """End a request's stream with reason `abort` and free its memory; one that ended already is left alone."""
        stream = self._forget(request_id)
        if stream is not None:
            self._inbox.put(Abort(request_id=request_id))
            stream.end(FinishReason.ABORT)

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
            raise EngineUnavailableError(f"The engine is {self._status}; it takes no new requests.")

    async def _prepare(self, requests: Sequence[GenerateRequest]) -> list[PreparedSequence]:
        """Tokenize and check in the tokenizers' threads; where those are broken, once more in others."""
        calls = [
            partial(self._front.prepare, request, serials=self._front.take_serials(request)) for request in requests
        ]
        tokenizers = self._tokenizers
        try:
            return await _call_all(calls, tokenizers)
        except BrokenExecutor:
            logger.exception("The tokenizer's threads broke; others take their place.")
        if self._tokenizers is tokenizers:  # nobody else has replaced them meanwhile
            self._tokenizers = self._make_tokenizers()
        try:
            return await _call_all(calls, self._tokenizers)
        except BrokenExecutor as error:
            raise EngineUnavailableError("The tokenizer has no threads to run in; its log says why.") from error

    def _enqueue(self, prepared: PreparedSequence) -> RequestStream:
        stream = QueuedStream(prepared, abort=self.abort)
        self._streams[stream.request_id] = stream
        self._waiting.add(stream.request_id)
        self._idle.clear()
        self._inbox.put(prepared.submission)
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
        self._stats = result.stats
        self._waiting.difference_update(result.admitted)
        for output in result.outputs:
            stream = self._streams.get(output.request_id)
            if stream is None:  # aborted while the step ran: the token is nobody's
                continue
            made = stream.push(output)
            if ends_unknown_to_the_core(output, made):
                self._inbox.put(Finish(request_id=output.request_id, num_completion_tokens=made.num_completion_tokens))
            if made.finished:
                self._forget(output.request_id)

    def _die(self, failure: RequestFailure) -> None:
        """Tell every stream that no more will come; runs on the event loop."""
        self._status = EngineStatus.DEAD
        self._inbox.put(_Stop())  # should the step end after all: nobody wants another
        for request_id in tuple(self._streams):
            stream = self._forget(request_id)
            assert stream is not None
            stream.fail(failure)

    def _run(self, core: SteppingCore) -> None:
        """Step while there is work; runs in the core's thread."""
        try:
            while self._take_messages(core):
                self._step(core)
                if not core.has_work:  # an idle step: it audits the blocks, and nobody waits for it
                    self._step(core)
        except BaseException:  # whatever ends this thread, streams must not wait for it
            logger.exception("The engine core failed; every request in it fails with it.")
            self._post(self._die, ENGINE_DEAD)
        finally:
            self._post(self._stopped.set)

    def _step(self, core: SteppingCore) -> None:
        with self._watchdog.step_under_way():
            result = core.step()
        self._post(self._deliver, result)

    def _take_messages(self, core: SteppingCore) -> bool:
        """Hand all waiting messages to the core, sleeping for one until it has work; False when told to stop."""
        wait_s = core.seconds_until_work()
        try:
            message = self._inbox.get(timeout=None if wait_s is None else min(wait_s, MAX_WAIT_S))
            while not isinstance(message, _Stop):
                core.handle(message)
                message = self._inbox.get_nowait()
        except queue.Empty:
            return True
        return False

    def _post(self, callback: Callable[[*_Args], None], *args: *_Args) -> None:
        """Call back on the event loop, from the core's thread; without one there is nobody to disturb."""
        if self._loop is None:
            callback(*args)
        else:
            with contextlib.suppress(RuntimeError):  # the loop is closed: nobody is left to hear of it
                self._loop.call_soon_threadsafe(callback, *args)


async def _call_all(
    calls: Sequence[Callable[[], list[PreparedSequence]]], executor: Executor
) -> list[PreparedSequence]:
    """Call them all in `executor` and return their results, joined."""
    loop = asyncio.get_running_loop()
    results = await asyncio.gather(*[loop.run_in_executor(executor, call) for call in calls])
    return [sequence for result in results for sequence in result]
