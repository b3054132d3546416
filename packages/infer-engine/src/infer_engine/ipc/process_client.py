"""`ProcessCoreClient`: runs a core in a process of its own, without importing torch here.

    frontend process                             core process (`infer_engine.assembly.core_process`)
      send ──> outbox ──writer thread──socket──> reader thread ──> inbox ──> step, step, step
      on_result <──reader thread──────socket<──────────────────── results, heartbeats, log lines

A full socket blocks the core, not the event loop. When a process dies its socket closes, and the other one notices.
"""

import logging
import queue
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress

import msgspec

from infer_engine.ipc.chunked_payloads import ChunkAssembler, PromptLogprobsChunk
from infer_engine.ipc.core_client import ENGINE_DEAD, CoreCallbacks
from infer_engine.ipc.process_messages import CoreReady, CoreSetup, FromCoreProcess, Heartbeat
from infer_engine.messages import Halt, StepResult, ToCore
from infer_engine.processes.child_process import ChildProcess, CoreRefused
from infer_engine.protocol import EngineConfig, EngineStartError, InvalidRequestError

logger = logging.getLogger(__name__)

HEARTBEAT_S = 1.0
MISSED_HEARTBEATS = 5
"""Missed heartbeats after which `step_age_s` reports the silence."""


class ProcessCoreClient:
    """Client of a core in a process of its own. `infer_engine.ipc.core_client.CoreClient` documents each method.

    Attributes:
        ready: the loaded model and the core's statistics before its first step.
    """

    def __init__(
        self,
        config: EngineConfig,
        *,
        processors: Sequence[int] = (),
        while_loading: Callable[[], object] = lambda: None,
    ) -> None:
        """Start the process, which computes on `processors` or on all, and wait until it has loaded the model.

        `while_loading` is called once the process has started.

        Raises:
            CheckpointUnusableError: the checkpoint is missing, damaged or of no known kind.
            ValueError: the configuration asks for more than the model, the device or the memory has.
            EngineStartError: the process failed or ended while it loaded.
        """
        self._heartbeat_s = min(HEARTBEAT_S, config.step_timeout_s / MISSED_HEARTBEATS)
        self._decoder = msgspec.msgpack.Decoder(FromCoreProcess)
        self._encoder = msgspec.msgpack.Encoder()
        self._outbox: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()  # frames; None ends the writer
        self._chunks = ChunkAssembler()
        self._last_message_s = time.monotonic()
        self._heartbeat = Heartbeat(step_age_s=None)
        self._stopping = False
        self._callbacks: CoreCallbacks | None = None
        self._process = ChildProcess("infer_engine.assembly.core_process")
        self._connection = self._process.connection
        try:
            self._send_setup(config, processors)
            while_loading()
            self.ready = self._wait_until_ready()
        except BaseException:  # also an interrupt: nothing else would end the process
            self._process.kill()
            raise
        self._reader = threading.Thread(target=self._read, name="infer-core-reader", daemon=True)
        self._writer = threading.Thread(target=self._write, name="infer-core-writer", daemon=True)

    @property
    def pid(self) -> int:
        """The id of the process."""
        return self._process.pid

    def start(self, callbacks: CoreCallbacks) -> None:
        """Start the reader and writer threads."""
        self._callbacks = callbacks
        self._last_message_s = time.monotonic()
        self._reader.start()
        self._writer.start()

    def send(self, message: ToCore) -> None:
        """Encode a message and queue it for the writer thread.

        Raises:
            InvalidRequestError: the message cannot be encoded. An error in the writer thread would have no caller.
        """
        try:
            self._outbox.put(self._encoder.encode(message))
        except (TypeError, ValueError, OverflowError) as error:
            raise InvalidRequestError(
                f"The request holds a value that cannot be sent to the engine's process ({error}); send plain text and "
                "numbers of at most 64 bits."
            ) from error

    def stop(self) -> None:
        """End the process after the current step."""
        self._stopping = True
        self._outbox.put(self._encoder.encode(Halt()))
        self._outbox.put(None)

    def join(self) -> None:
        """Wait for the reader thread, which waits for the process."""
        self._reader.join()

    def abandon(self) -> None:
        """Kill the process and those that it has started."""
        self._process.kill_tree()

    def step_age_s(self) -> float | None:
        """Return the age of the current step by the last heartbeat, or the time since the last message."""
        silence_s = time.monotonic() - self._last_message_s
        if self._heartbeat.step_age_s is not None:
            return self._heartbeat.step_age_s + silence_s
        return silence_s if silence_s > MISSED_HEARTBEATS * self._heartbeat_s else None

    def describe_step(self) -> str:
        """Return where the core's process says that it is."""
        if self._heartbeat.stack is None:
            return f"The core's process, {self.pid}, is silent."
        return f"The core's process, {self.pid}, is here:\n{self._heartbeat.stack}"

    def _send_setup(self, config: EngineConfig, processors: Sequence[int]) -> None:
        setup = CoreSetup(
            config=config,
            log_level=logging.getLogger().getEffectiveLevel(),
            heartbeat_s=self._heartbeat_s,
            processors=list(processors),
        )
        with suppress(OSError):  # it has ended, which who waits for it reports
            self._connection.send_bytes(self._encoder.encode(setup))

    def _wait_until_ready(self) -> CoreReady:
        try:
            while True:
                match self._receive():
                    case CoreReady() as ready:
                        return ready
                    case CoreRefused() as refused:
                        raise refused.error()
        except (EOFError, OSError) as error:
            raise EngineStartError(f"The engine's process {self._process.describe_end()}") from error

    def _receive(self) -> FromCoreProcess:
        """Receive the next message; record a heartbeat."""
        message: FromCoreProcess = self._process.receive(self._decoder)
        self._last_message_s = time.monotonic()
        if isinstance(message, Heartbeat):
            self._heartbeat = message
        return message

    def _read(self) -> None:
        """Pass results to the callbacks until the process closes its socket; runs in the reader thread."""
        assert self._callbacks is not None
        try:
            while True:
                match self._receive():
                    case PromptLogprobsChunk() as chunk:
                        self._chunks.add(chunk)
                    case StepResult() as result:
                        self._heartbeat = Heartbeat(step_age_s=None)
                        self._callbacks.on_result(self._chunks.complete(result))
        except (EOFError, OSError):
            self._report_end(self._callbacks)
        except BaseException:  # streams must not wait for a thread that has ended
            logger.exception("A message of the engine's process cannot be read.")
            self._process.process.kill()
            self._report_end(self._callbacks)
        finally:
            self._outbox.put(None)
            self._writer.join()  # its sends fail at once: the process has ended
            self._connection.close()
            self._callbacks.on_ended()

    def _report_end(self, callbacks: CoreCallbacks) -> None:
        is_expected = self._stopping
        if not is_expected:
            callbacks.on_lost(ENGINE_DEAD)  # before the wait for the exit code
        code = self._process.wait_or_kill()
        if not is_expected:
            logger.error("The engine's process, %d, ended with exit code %d.", self.pid, code)

    def _write(self) -> None:
        """Send the frames of the outbox until None; runs in the writer thread."""
        try:
            while (frame := self._outbox.get()) is not None:
                self._connection.send_bytes(frame)
        except OSError:
            return  # the process has ended; the reader reports it
