"""The program of a core's process: loads the model, steps the core, says what came of it. Knows no text and no HTTP.

`python -m infer_engine.ipc.worker FD`, where FD is this process's end of the socket pair.
"""

import gc
import logging
import os
import queue
import signal
import sys
import threading
import time
from multiprocessing.connection import Connection

import msgspec

from infer_engine.ipc.chunked_payloads import split_into_chunks
from infer_engine.ipc.core_loop import CoreLoop, Inbox, StepTimer
from infer_engine.ipc.log_forwarding import LogSender
from infer_engine.ipc.messages import StepResult
from infer_engine.ipc.process_memory import keep_freed_memory, release_library_pages
from infer_engine.ipc.worker_messages import (
    MAX_FRAME_BYTES,
    CoreReady,
    CoreRefused,
    FromWorker,
    Heartbeat,
    ToWorker,
    WorkerSetup,
)
from infer_engine.protocol import CheckpointUnusableError

logger = logging.getLogger(__name__)

EXIT_FAILED = 1
_FRONT_GONE = _TOLD_TO_HALT = 0


class _Outlet:
    """Where messages to the front go, from any thread."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._encoder = msgspec.msgpack.Encoder()
        self._lock = threading.Lock()

    def send(self, message: FromWorker) -> None:
        """Send a message; without a front there is nothing left to do for this process."""
        try:
            with self._lock:
                self._connection.send_bytes(self._encoder.encode(message))
        except OSError:
            os._exit(_FRONT_GONE)

    def send_result(self, result: StepResult) -> None:
        """Send what a step made."""
        for message in split_into_chunks(result):
            self.send(message)


def main() -> int:
    """Serve one front until it goes away or says so, and end the process; return the exit code if there is no core."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)  # the front drains; this process ends when the front says so, or is gone
    connection = Connection(int(sys.argv[1]))
    setup = msgspec.msgpack.decode(connection.recv_bytes(MAX_FRAME_BYTES), type=WorkerSetup)
    outlet = _Outlet(connection)
    logging.basicConfig(level=setup.log_level, handlers=[LogSender(outlet.send)])
    inbox: Inbox = queue.SimpleQueue()
    # From the first moment on: a front that dies ends this process, whatever it does.
    threading.Thread(target=_read, args=(connection, inbox), name="infer-front-reader", daemon=True).start()
    return _serve(setup, outlet, inbox)


def _read(connection: Connection, inbox: Inbox) -> None:
    decoder = msgspec.msgpack.Decoder(ToWorker)
    try:
        while True:
            inbox.put(decoder.decode(connection.recv_bytes(MAX_FRAME_BYTES)))
    except (EOFError, OSError):
        os._exit(_FRONT_GONE)
    except BaseException:  # a core that nobody can talk to must not look alive
        logger.exception("What the front says cannot be read.")
        os._exit(EXIT_FAILED)


def _serve(setup: WorkerSetup, outlet: _Outlet, inbox: Inbox) -> int:
    from infer_engine.build import build_core  # noqa: PLC0415 - imports slowly: only once the parent's messages are read

    try:
        parts = build_core(setup.config)
    except (CheckpointUnusableError, ValueError) as error:
        outlet.send(CoreRefused(message=str(error), is_checkpoint=isinstance(error, CheckpointUnusableError)))
        return EXIT_FAILED
    keep_freed_memory()
    release_library_pages()
    gc.collect()
    gc.freeze()  # what is there stays: a full collection would look at all of it, and steps would wait
    timer = StepTimer(time.monotonic)
    threading.Thread(target=_beat, args=(setup, outlet, timer), name="infer-heartbeat", daemon=True).start()
    outlet.send(CoreReady(info=parts.info, stats=parts.core.stats))
    # Either end is at once. The interpreter's own would read back the libraries that this process has let go of, in a
    # second or many, and after a failure streams wait: a broken device might hold it up for ever.
    try:
        CoreLoop(parts.core, emit=outlet.send_result, timer=timer, inbox=inbox).run()
    except BaseException:
        logger.exception("The engine core failed; every request in it fails with it.")
        os._exit(EXIT_FAILED)
    os._exit(_TOLD_TO_HALT)


def _beat(setup: WorkerSetup, outlet: _Outlet, timer: StepTimer) -> None:
    """Send signs of life for ever, with the place of a step that takes too long."""
    while True:
        age_s = timer.age_s()
        is_late = age_s is not None and age_s > setup.config.step_timeout_s / 2
        outlet.send(Heartbeat(step_age_s=age_s, stack=timer.stack() if is_late else None))
        time.sleep(setup.heartbeat_s)


if __name__ == "__main__":
    sys.exit(main())
