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
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection
from typing import Any, Literal

import msgspec
import psutil

from infer_engine.processes.log_forwarding import LogLine, LogSender
from infer_engine.protocol import CheckpointUnusableError, EngineStartError
from infer_models.errors import CheckpointError

logger = logging.getLogger(__name__)

MAX_FRAME_BYTES = 1 << 30
"""Longest frame that is accepted."""

END_TIMEOUT_S = 5.0
EXIT_OK, EXIT_FAILED = 0, 1
_IGNORED_SIGNALS = (signal.SIGINT, signal.SIGTERM)
"""The parent decides when a child ends."""


class CoreRefused(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """A child's message that it cannot start.

    Attributes:
        message: says why.
        cause: what is wrong: the checkpoint is unusable, the configuration asks for too much, or nobody foresaw it.
    """

    message: str
    cause: Literal["checkpoint", "configuration", "failure"]

    @classmethod
    def by(cls, error: Exception) -> "CoreRefused":
        """Return the message that says that `error` has ended the start."""
        match error:
            case CheckpointUnusableError() | CheckpointError():
                return cls(message=str(error), cause="checkpoint")
            case ValueError():
                return cls(message=str(error), cause="configuration")
            case _:
                return cls(message=str(EngineStartError.by(error)), cause="failure")

    def error(self) -> Exception:
        """Return the error for the caller who wanted the child to start."""
        kinds = {"checkpoint": CheckpointUnusableError, "configuration": ValueError, "failure": EngineStartError}
        return kinds[self.cause](self.message)


class ChildProcess:
    """A running child process.

    Attributes:
        connection: this process's end of the sockets.
        process: the child.
    """

    def __init__(self, module: str) -> None:
        """Start `module`."""
        self.connection, child_end = multiprocessing.Pipe()
        with child_end, _blocked_signals():
            self.process = subprocess.Popen(  # noqa: S603 - our own program
                # -P: do not import modules, such as a `queue.py`, from the working directory.
                [sys.executable, "-P", "-m", module, str(child_end.fileno())],
                pass_fds=[child_end.fileno()],
                stdin=subprocess.DEVNULL,
            )
        self._last_line = ""

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
                    self._last_line = text.partition("\n")[0]
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

    def describe_end(self) -> str:
        """Return how the process ended, which has closed its socket, and what it logged last."""
        code = self.wait_or_kill()
        try:
            how = f"was ended by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"
        except ValueError:  # of a real-time signal
            how = f"was ended by signal {-code}"
        if code == -signal.SIGKILL:
            how += ", perhaps for lack of memory,"
        return f"{how} while it loaded" + (f"; it logged last: {self._last_line}" if self._last_line else ".")


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


@contextlib.contextmanager
def _blocked_signals() -> Iterator[None]:
    """Block the signals that a child ignores: those of a terminal go to it too, and it takes a while to say so."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _IGNORED_SIGNALS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def connect_to_parent() -> tuple[Connection, bytes]:
    """Return the connection to the parent process, and its first message; end where the parent has ended."""
    for number in _IGNORED_SIGNALS:
        signal.signal(number, signal.SIG_IGN)
    connection = Connection(int(sys.argv[1]))
    try:
        return connection, connection.recv_bytes(MAX_FRAME_BYTES)
    except (EOFError, OSError):  # interrupted while it started
        sys.exit(EXIT_FAILED)


def follow_parent(
    connection: Connection, messages: Any, take: Callable[[Any], None], *, log_level: int
) -> MessageSender:
    """Read `messages`, a union of types, from now on, and send the log; return what sends messages to the parent.

    Call it before what takes long: from then on the end of the parent ends this process at any time.
    """
    sender = MessageSender(connection)
    logging.basicConfig(level=log_level, format="%(message)s", handlers=[LogSender(sender.send)])
    logging.getLogger("infer_kernels").setLevel(logging.DEBUG)  # a library that ends the process is its last line
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
