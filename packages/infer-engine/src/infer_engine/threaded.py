"""`ThreadedEngine`: the core steps in a thread of its own; its front lives on the caller's event loop.

    event loop: submit ──tokenize in a pool──> inbox ══> core thread: step, step, step
    event loop: streams <──detokenize──call_soon_threadsafe══ one result per step

Knows threads, queues and the protocol; knows no tensors and no HTTP.
"""

import asyncio
import logging
import queue
import threading
from collections.abc import AsyncIterator, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TypeVarTuple

from infer_engine.core import EngineCore
from infer_engine.front import Front, RequestText
from infer_engine.messages import Abort, StepResult, Submit, TokenOutput
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
    StepOutput,
)

logger = logging.getLogger(__name__)

NUM_TOKENIZER_THREADS = 2
CLOSE_TIMEOUT_S = 5.0

_Args = TypeVarTuple("_Args")


class _Stop:
    """Tells the core's thread to end."""


class ThreadedEngine:
    """An engine for one event loop. Implements `infer_engine.protocol.Engine`; see there for each method."""

    def __init__(self, core: EngineCore, front: Front, *, info: EngineInfo, max_waiting_requests: int) -> None:
        """Start the core's thread; it sleeps until the first request."""
        self._front = front
        self._info = info
        self._max_waiting_requests = max_waiting_requests
        self._status = EngineStatus.READY
        self._stats = EngineStats(num_blocks=info.num_kv_blocks, num_free_blocks=info.num_kv_blocks)
        self._streams: dict[str, _Stream] = {}
        self._waiting: set[str] = set()
        self._num_preparing = 0
        self._idle = asyncio.Event()
        self._idle.set()
        self._stopped = asyncio.Event()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._inbox: queue.SimpleQueue[Submit | Abort | _Stop] = queue.SimpleQueue()
        self._tokenizers = ThreadPoolExecutor(NUM_TOKENIZER_THREADS, thread_name_prefix="infer-tokenize")
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
        self._check_room(len(requests))
        loop = self._loop = asyncio.get_running_loop()
        prepare = [partial(self._front.prepare, request, serial=self._front.next_serial()) for request in requests]
        self._num_preparing += len(requests)
        try:
            submissions = await asyncio.gather(*(loop.run_in_executor(self._tokenizers, call) for call in prepare))
        finally:
            self._num_preparing -= len(requests)
        self._check_open()  # the engine may have gone while the request was tokenized
        streams = [_Stream(self, submission, self._front.start_text(submission)) for submission in submissions]
        for stream, submission in zip(streams, submissions, strict=True):
            self._enqueue(stream, submission)
        return list(streams)

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
            stream.end(finish_reason=FinishReason.ABORT)

    def _check_room(self, num_requests: int) -> None:
        """Refuse what the queue cannot take before anybody tokenizes it; those being tokenized have their place."""
        num_waiting = len(self._waiting) + self._num_preparing
        if num_requests > self._max_waiting_requests:
            raise InvalidRequestError(
                f"The request has {num_requests} prompts and `max_waiting_requests` is {self._max_waiting_requests}; "
                "send fewer at once.",
                param="prompt",
            )
        if num_waiting + num_requests > self._max_waiting_requests:
            raise QueueFullError(
                f"{num_waiting} requests wait and `max_waiting_requests` is {self._max_waiting_requests}; "
                "try again later."
            )

    def _check_open(self) -> None:
        if self._status is not EngineStatus.READY:
            raise EngineUnavailableError(f"The engine is {self._status}; it takes no new requests.")

    def _enqueue(self, stream: "_Stream", submission: Submit) -> None:
        self._streams[submission.request_id] = stream
        self._waiting.add(submission.request_id)
        self._idle.clear()
        self._inbox.put(submission)

    def _forget(self, request_id: str) -> "_Stream | None":
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
            try:
                finished = stream.push(output)
            except Exception:
                logger.exception("The text of request %s failed; the others go on.", output.request_id)
                stream.end(error=RequestFailure(message="This request's text could not be made; the log says why."))
                finished = True
            if finished:
                self._forget(output.request_id)
                if output.finish_reason is None:  # the core knows nothing of it: a stop string, or failed text
                    self._inbox.put(Abort(request_id=output.request_id))

    def _die(self) -> None:
        """Tell every stream that no more will come; runs on the event loop."""
        self._status = EngineStatus.DEAD
        failure = RequestFailure(message="The engine failed; its log has the cause.", code="engine_dead")
        for request_id in tuple(self._streams):
            stream = self._forget(request_id)
            assert stream is not None
            stream.end(error=failure)

    def _run(self, core: EngineCore) -> None:
        """Step while there is work; runs in the core's thread."""
        try:
            while self._take_messages(core):
                self._post(self._deliver, core.step())
                if not core.has_work:  # an idle step: it audits the blocks, and nobody waits for it
                    self._post(self._deliver, core.step())
        except Exception:
            logger.exception("The engine core failed; every request in it fails with it.")
            self._post(self._die)
        finally:
            self._post(self._stopped.set)

    def _take_messages(self, core: EngineCore) -> bool:
        """Hand all waiting messages to the core, sleeping for one where it has no work; False when told to stop."""
        try:
            message = self._inbox.get(block=not core.has_work)
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
        elif not self._loop.is_closed():
            self._loop.call_soon_threadsafe(callback, *args)


class _Stream:
    """One request's outputs. Implements `infer_engine.protocol.RequestStream`."""

    def __init__(self, engine: ThreadedEngine, submission: Submit, text: RequestText) -> None:
        self._engine = engine
        self._text = text
        self._outputs: asyncio.Queue[StepOutput] = asyncio.Queue()
        self._ended = False
        self._last = StepOutput(
            request_id=submission.request_id,
            token_ids=[],
            num_prompt_tokens=len(submission.prompt_token_ids),
            num_completion_tokens=0,
        )

    @property
    def request_id(self) -> str:
        """The engine's own id."""
        return self._last.request_id

    @property
    def num_prompt_tokens(self) -> int:
        """Tokens of the prompt."""
        return self._last.num_prompt_tokens

    async def __aiter__(self) -> AsyncIterator[StepOutput]:
        """Yield outputs up to the finished one; nothing more after that."""
        while not self._ended:
            output = await self._outputs.get()
            self._ended = output.finished
            yield output

    def abort(self) -> None:
        """Stop computing; see `infer_engine.protocol.RequestStream.abort`."""
        self._engine.abort(self.request_id)

    def push(self, output: TokenOutput) -> bool:
        """Queue an output of the core for the reader; return whether it is the last."""
        self._last = self._text.advance(output)
        self._outputs.put_nowait(self._last)
        return self._last.finished

    def end(self, *, finish_reason: FinishReason | None = None, error: RequestFailure | None = None) -> None:
        """Queue a last output that carries no token, but the text that was held back."""
        self._outputs.put_nowait(
            StepOutput(
                request_id=self._last.request_id,
                token_ids=[],
                text=self._text.cut_short() if error is None else "",
                finished=True,
                finish_reason=finish_reason,
                error=error,
                num_prompt_tokens=self._last.num_prompt_tokens,
                num_completion_tokens=self._last.num_completion_tokens,
            )
        )
