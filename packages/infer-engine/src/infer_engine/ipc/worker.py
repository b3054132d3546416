"""Program of a core process: loads the model, steps the core and sends the results.

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
from infer_engine.ipc.processors import use_processors
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

EXIT_OK, EXIT_FAILED = 0, 1


class _MessageSender:
    """Sends messages to the client, from any thread."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._encoder = msgspec.msgpack.Encoder()
        self._lock = threading.Lock()

    def send(self, message: FromWorker) -> None:
        """Send a message; end this process if the client has ended."""
        try:
            with self._lock:
                self._connection.send_bytes(self._encoder.encode(message))
        except OSError:
            os._exit(EXIT_OK)

    def send_result(self, result: StepResult) -> None:
        """Send the result of a step, in chunks if it is long."""
        for message in split_into_chunks(result):
            self.send(message)


def main() -> int:
    """Serve one client until it ends or sends `Halt`, then end the process; return an exit code if there is no core."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)  # the client drains first; this process ends after it
    connection = Connection(int(sys.argv[1]))
    setup = msgspec.msgpack.decode(connection.recv_bytes(MAX_FRAME_BYTES), type=WorkerSetup)
    sender = _MessageSender(connection)
    logging.basicConfig(level=setup.log_level, format="%(message)s", handlers=[LogSender(sender.send)])
    inbox: Inbox = queue.SimpleQueue()
    # Started before the model is loaded: the end of the client ends this process at any time.
    threading.Thread(target=_read, args=(connection, inbox), name="infer-client-reader", daemon=True).start()
    return _serve(setup, sender, inbox)


def _read(connection: Connection, inbox: Inbox) -> None:
    decoder = msgspec.msgpack.Decoder(ToWorker)
    try:
        while True:
            inbox.put(decoder.decode(connection.recv_bytes(MAX_FRAME_BYTES)))
    except (EOFError, OSError):
        os._exit(EXIT_OK)
    except BaseException:  # a core that gets no messages must not look alive
        logger.exception("A message of the client cannot be read.")
        os._exit(EXIT_FAILED)


def _serve(setup: WorkerSetup, sender: _MessageSender, inbox: Inbox) -> int:
    use_processors(setup.processors)
    from infer_engine.build import build_core  # noqa: PLC0415 - imports slowly: only after the reader has started

    try:
        built = build_core(setup.config)
    except (CheckpointUnusableError, ValueError) as error:
        sender.send(CoreRefused(message=str(error), is_checkpoint=isinstance(error, CheckpointUnusableError)))
        return EXIT_FAILED
    keep_freed_memory()
    release_library_pages()
    gc.collect()
    gc.freeze()  # full collections skip what was loaded, so that they do not delay steps
    timer = StepTimer(time.monotonic)
    threading.Thread(target=_beat, args=(setup, sender, timer), name="infer-heartbeat", daemon=True).start()
    sender.send(CoreReady(info=built.info, stats=built.core.stats))
    # The process ends by `_exit`. A normal exit would read back the released libraries, which takes seconds, and might
    # never end after a failure of the device, while streams wait.
    try:
        CoreLoop(built.core, emit=sender.send_result, timer=timer, inbox=inbox, grammars=built.grammars).run()
    except BaseException:
        logger.exception("The engine core failed; every request in it fails with it.")
        os._exit(EXIT_FAILED)
    os._exit(EXIT_OK)


def _beat(setup: WorkerSetup, sender: _MessageSender, timer: StepTimer) -> None:
    """Send heartbeats for ever, with the stack of a step that takes too long."""
    while True:
        age_s = timer.age_s()
        is_late = age_s is not None and age_s > setup.config.step_timeout_s / 2
        sender.send(Heartbeat(step_age_s=age_s, stack=timer.stack() if is_late else None))
        time.sleep(setup.heartbeat_s)


if __name__ == "__main__":
    sys.exit(main())
