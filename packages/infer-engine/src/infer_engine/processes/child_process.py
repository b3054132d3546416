"""Starts programs of this package as child processes, each joined to this one by a pair of sockets.

`python -m MODULE FD`, where FD is the child's end. When either process ends, the other one finds its socket closed.
"""

import contextlib
import logging
import multiprocessing
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any

import msgspec
import psutil

from infer_engine.processes.log_forwarding import LogLine, LogSender

logger = logging.getLogger(__name__)

MAX_FRAME_BYTES = 1 << 30
"""Longest frame that is accepted."""

END_TIMEOUT_S = 5.0
EXIT_OK, EXIT_FAILED = 0, 1


class CoreRefused(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """A child's message that it cannot start: the checkpoint is unusable, or the configuration asks for too much."""

    message: str
    is_checkpoint: bool


class ChildProcess:
    """A running child process.

    Attributes:
        connection: this process's end of the sockets.
        process: the child.
    """

    def __init__(self, module: str) -> None:
        """Start `module`."""
        self.connection, child_end = multiprocessing.Pipe()
        with child_end:
            self.process = subprocess.Popen(  # noqa: S603 - our own program
                # -P: do not import modules, such as a `queue.py`, from the working directory.
                [sys.executable, "-P", "-m", module, str(child_end.fileno())],
                pass_fds=[child_end.fileno()],
                stdin=subprocess.DEVNULL,
            )

    @property
    def pid(self) -> int:
        """The id of the process."""
        return self.process.pid

    def receive(self, decoder: "msgspec.msgpack.Decoder[Any]") -> Any:
        """Return the child's next message that is no line of its log; those go into this process's log.

        Raises:
            EOFError: the child has ended; OSError means the same.
        """
        while True:
            match decoder.decode(self.connection.recv_bytes(MAX_FRAME_BYTES)):
                case LogLine(name=name, level=level, message=text):
                    logging.getLogger(name).log(level, "%s", text)
                case message:
                    return message

    def kill(self) -> None:
        """Kill the process and close the connection."""
        self.process.kill()
        self.process.wait()
        self.connection.close()

    def kill_tree(self) -> None:
        """Kill the process and its children, which might be stopped and not see that it has ended; do not wait."""
        if self.process.poll() is not None:
            return
        with contextlib.suppress(psutil.Error):
            for child in psutil.Process(self.pid).children(recursive=True):
                child.kill()
        self.process.kill()

    def wait_or_kill(self) -> int:
        """Return the exit code of the process, which has closed its socket; kill it if it does not end."""
        try:
            return self.process.wait(END_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            return self.process.wait()


class MessageSender:
    """Sends a child's messages to its parent, from any thread."""

    def __init__(self, connection: Connection) -> None:
        """Send over `connection`."""
        self._connection = connection
        self._encoder = msgspec.msgpack.Encoder()
        self._lock = threading.Lock()

    def send(self, message: msgspec.Struct) -> None:
        """Send a message; end this process if the parent has ended."""
        try:
            with self._lock:
                self._connection.send_bytes(self._encoder.encode(message))
        except OSError:
            os._exit(EXIT_OK)


def connect_to_parent() -> tuple[Connection, bytes]:
    """Return the connection to the parent process, and its first message. The parent decides when this process ends."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    connection = Connection(int(sys.argv[1]))
    return connection, connection.recv_bytes(MAX_FRAME_BYTES)


def follow_parent(
    connection: Connection, messages: Any, take: Callable[[Any], None], *, log_level: int
) -> MessageSender:
    """Read `messages`, a union of types, from now on, and send the log; return what sends messages to the parent.

    Call it before what takes long: from then on the end of the parent ends this process at any time.
    """
    sender = MessageSender(connection)
    logging.basicConfig(level=log_level, format="%(message)s", handlers=[LogSender(sender.send)])
    arguments = (connection, msgspec.msgpack.Decoder(messages), take)
    threading.Thread(target=_read_messages, args=arguments, name="infer-parent-reader", daemon=True).start()
    return sender


def _read_messages(
    connection: Connection, decoder: "msgspec.msgpack.Decoder[Any]", take: Callable[[Any], None]
) -> None:
    """Give the parent's messages to `take` until the parent ends; then end this process. Runs in a thread."""
    try:
        while True:
            take(decoder.decode(connection.recv_bytes(MAX_FRAME_BYTES)))
    except (EOFError, OSError):
        os._exit(EXIT_OK)
    except BaseException:  # a process that gets no messages must not look alive
        logger.exception("A message of the parent process cannot be read.")
        os._exit(EXIT_FAILED)
