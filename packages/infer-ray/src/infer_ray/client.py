"""`RayCoreClient`: client of the core of one replica, over a handle of Ray Serve.

send ──> run, tell ──> CoreReplica          one call for each message
on_result <──────── results <── CoreReplica     one stream for all requests
"""

import asyncio
import logging
import threading
import uuid
from collections.abc import AsyncIterator, Coroutine
from contextlib import suppress
from contextvars import Context
from typing import Any, Protocol

import msgspec
from ray.serve.handle import DeploymentHandle

from infer_engine.ipc.chunked_payloads import ChunkAssembler, PromptLogprobsChunk
from infer_engine.ipc.core_client import ENGINE_DEAD, CoreCallbacks
from infer_engine.messages import Abort, Finish, StepResult, Submit, ToCore
from infer_engine.protocol import EngineStats, InvalidRequestError
from infer_ray.replica import SESSION_TIMEOUT_S
from infer_ray.wire import Accepted, FromReplica, KeepAlive, Opened

logger = logging.getLogger(__name__)

KEEP_ALIVE_S = SESSION_TIMEOUT_S / 6
END_TIMEOUT_S = 2.0
"""Seconds that a replica has to learn that a session has ended; otherwise it notices the silence."""
ACCEPT_TIMEOUT_S = 2.0
"""Seconds that requests on their way have to reach a replica that takes no more requests."""


class Frames(Protocol):
    """The events of a session's stream, until it is cancelled."""

    def __aiter__(self) -> AsyncIterator[bytes]:
        """Return the iterator."""

    def cancel(self) -> None:
        """End the stream."""


class RayCoreClient:
    """Client of a replica's core, with an open session. `infer_engine.ipc.core_client.CoreClient` documents methods.

    Attributes:
        stats: the core's statistics when the session began.
        ended: set when the session has ended.
    """

    def __init__(
        self,
        replica_id: str,
        session_id: str,
        handle: DeploymentHandle[Any],
        frames: Frames,
    ) -> None:
        """Use `connect`."""
        self.stats = EngineStats()
        self.ended = asyncio.Event()
        self._replica_id = replica_id
        self._session_id = session_id
        self._handle = handle
        self._frames = frames
        self._loop = asyncio.get_running_loop()
        self._encoder = msgspec.msgpack.Encoder()
        self._decoder = msgspec.msgpack.Decoder(FromReplica)
        self._chunks = ChunkAssembler()
        self._runs: dict[str, asyncio.Task[None]] = {}
        self._unaccepted: set[str] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._receiver: asyncio.Task[None] | None = None
        self._is_stopping = False
        self._is_retired = False
        self._has_ended = threading.Event()

    @classmethod
    async def connect(cls, replica_id: str, handle: DeploymentHandle[Any]) -> "RayCoreClient":
        """Open a session with a replica, and return its client, which belongs to the running event loop.

        Raises:
            Exception: whatever Ray raises when the replica cannot be reached.
        """
        session_id = uuid.uuid4().hex
        frames: Any = handle.options(stream=True).results.remote(replica_id, session_id)
        client = cls(replica_id, session_id, handle, frames)
        try:
            opened = client._decoder.decode(await anext(frames))
        except BaseException:
            frames.cancel()
            raise
        assert isinstance(opened, Opened)
        client.stats = opened.stats
        return client

    def start(self, callbacks: CoreCallbacks) -> None:
        """Pass on what the replica sends."""
        self._loop.call_soon_threadsafe(self._start, callbacks)

    def send(self, message: ToCore) -> None:
        """Encode a message and send it.

        Raises:
            InvalidRequestError: the message cannot be encoded.
        """
        try:
            frame = self._encoder.encode(message)
        except (TypeError, ValueError, OverflowError) as error:
            raise InvalidRequestError(f"The request holds a value that no replica can be sent ({error}).") from error
        self._loop.call_soon_threadsafe(self._send, message, frame)

    def retire(self) -> None:
        """Take note that calls do not reach the replica any more; it still answers those that it has."""
        self._is_retired = True
        self._loop.call_later(ACCEPT_TIMEOUT_S, self._end_if_unaccepted)

    def stop(self) -> None:
        """End the session; the replica lives on."""
        self._is_stopping = True
        self.abandon()

    def join(self) -> None:
        """Wait for the end of the session."""
        self._has_ended.wait()

    def abandon(self) -> None:
        """End the session; its requests go on elsewhere."""
        self._loop.call_soon_threadsafe(self._end)

    def step_age_s(self) -> float | None:
        """Return None: the replica ends itself if a step is stuck."""
        return None

    def describe_step(self) -> str:
        """Return which replica computes."""
        return f"The core is in the Ray replica {self._replica_id}."

    def _start(self, callbacks: CoreCallbacks) -> None:
        self._receiver = self._loop.create_task(self._receive(callbacks))
        self._spawn(self._keep_alive())

    def _end(self) -> None:
        if self._receiver is None:
            self._frames.cancel()
        else:
            self._receiver.cancel()

    def _end_if_unaccepted(self) -> None:
        if self._unaccepted:
            logger.warning("%d requests have not reached the Ray replica %s.", len(self._unaccepted), self._replica_id)
            self._end()

    def _send(self, message: ToCore, frame: bytes) -> None:
        if self._has_ended.is_set():
            return
        match message:
            case Submit(request_id=request_id):
                self._unaccepted.add(request_id)
                run = self._runs[request_id] = self._spawn(self._call("run", frame))
                run.add_done_callback(lambda _: self._forget(request_id))
            case Abort(request_id=request_id):
                self._cancel(request_id)
            case Finish(request_id=request_id) if self._is_retired:
                self._cancel(request_id)
            case _:
                self._tell(frame)

    def _forget(self, request_id: str) -> None:
        self._runs.pop(request_id, None)
        self._unaccepted.discard(request_id)

    def _cancel(self, request_id: str) -> None:
        run = self._runs.get(request_id)
        if run is not None:
            run.cancel()

    def _tell(self, frame: bytes) -> None:
        if not self._is_retired:
            self._spawn(self._call("tell", frame))

    async def _receive(self, callbacks: CoreCallbacks) -> None:
        """Pass results to the callbacks until the session ends."""
        try:
            async for frame in self._frames:
                self._take(frame, callbacks)
        except asyncio.CancelledError:
            await self._end_frames()
        except Exception as error:  # noqa: BLE001 - whatever it is, the replica cannot be reached
            self._log("The Ray replica %s is lost: %s", error)
        finally:
            for task in tuple(self._tasks):
                task.cancel()
            if not self._is_stopping:
                callbacks.on_lost(ENGINE_DEAD)
            callbacks.on_ended()
            self._has_ended.set()
            self.ended.set()

    async def _end_frames(self) -> None:
        """End the stream, and wait until the replica knows: this process may be about to end."""
        self._frames.cancel()
        with suppress(Exception):  # whatever Ray raises when a stream is cancelled
            async with asyncio.timeout(END_TIMEOUT_S):
                async for _ in self._frames:
                    pass

    def _take(self, frame: bytes, callbacks: CoreCallbacks) -> None:
        match self._decoder.decode(frame):
            case Accepted(request_id=request_id):
                self._unaccepted.discard(request_id)
            case PromptLogprobsChunk() as chunk:
                self._chunks.add(chunk)
            case StepResult() as result:
                callbacks.on_result(self._chunks.complete(result))

    async def _keep_alive(self) -> None:
        while True:
            self._tell(self._encoder.encode(KeepAlive()))
            await asyncio.sleep(KEEP_ALIVE_S)

    async def _call(self, method: str, frame: bytes) -> None:
        """Call the replica; without an answer it is lost."""
        response = getattr(self._handle, method).remote(self._replica_id, self._session_id, frame)
        try:
            await response
        except asyncio.CancelledError:
            response.cancel()
            raise
        except Exception as error:  # noqa: BLE001 - whatever it is, the replica has not answered
            self._log("A call of the Ray replica %s failed: %s", error)
            self._end()

    def _log(self, text: str, error: Exception) -> None:
        if not self._is_stopping:
            logger.error(text, self._replica_id, (str(error).strip() or type(error).__name__).splitlines()[0])

    def _spawn(self, coroutine: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Start a task without the context of an HTTP request.

        Ray Serve's router takes two calls of one request for one, and sends them to the same replica.
        """
        task = self._loop.create_task(coroutine, context=Context())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task
