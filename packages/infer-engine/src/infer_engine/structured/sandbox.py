"""`GrammarSandbox`: tries grammars in a process of its own, so that a hostile one costs only that process.

    this process                    sandbox process (`infer_engine.structured.sandbox_process`)
      check(grammar) ──grammar──>     fork ──> compile, walk about, exit    limits: CPU seconds, memory
                     <──verdict──     wait for it

A compilation cannot be interrupted, and some need minutes and gigabytes; a forked process can be killed, and gives all
its memory back.
"""

import logging
import threading
from collections import OrderedDict
from collections.abc import Callable
from multiprocessing.connection import Connection

import msgspec

from infer_engine.processes.child_process import ChildProcess
from infer_engine.structured.errors import GrammarError

logger = logging.getLogger(__name__)

MAX_CPU_S = 1
MAX_WALL_S = 10.0
START_TIMEOUT_S = 60.0
MAX_GROWTH_BYTES = 1 << 29
MAX_PASSED = 1024


class SandboxSetup(msgspec.Struct, frozen=True, kw_only=True):
    """The first message to the sandbox process: the tokens by id, and which of them are special or end a text."""

    tokens: list[bytes]
    special_ids: list[int]
    eos_token_ids: list[int]


class Verdict(msgspec.Struct, frozen=True, kw_only=True):
    """The verdict on a grammar: `error` says why it is refused; None: it may be used, or `wider` in its place."""

    error: str | None
    wider: str | None = None


class GrammarSandbox:
    """Tries grammars one after another. Safe to use from several threads, which wait for one another."""

    def __init__(self, make_setup: Callable[[], SandboxSetup]) -> None:
        """Start the process, with `make_setup()`, when the first grammar comes."""
        self._make_setup = make_setup
        self._lock = threading.Lock()
        self._passed: OrderedDict[str, str] = OrderedDict()
        self._process: ChildProcess | None = None
        self._is_closed = False

    @property
    def pid(self) -> int | None:
        """The id of the process, or None before the first grammar and after the end."""
        return None if self._process is None else self._process.pid

    def passed_as(self, grammar: str) -> str | None:
        """Return what `check` returns, if `grammar` was found good before; else None. Does not wait."""
        return self._passed.get(grammar)

    def check(self, grammar: str) -> str:
        """Try `grammar`; wait until it is compiled or has reached a limit.

        Returns the grammar to use: this one, or one with wider schemas where the library takes no other.

        Raises:
            GrammarError: it is no grammar, or takes too much time or memory.
        """
        with self._lock:
            if self._is_closed:
                raise GrammarError("the engine is stopped")
            if (passed := self._passed.get(grammar)) is None:
                verdict = self._ask(grammar)
                if verdict.error is not None:
                    raise GrammarError(verdict.error)
                passed = self._passed[grammar] = verdict.wider or grammar
                if len(self._passed) > MAX_PASSED:
                    self._passed.popitem(last=False)
            return passed

    def close(self) -> None:
        """End the process; later checks are refused. Does not wait for a check that is running."""
        self._is_closed = True
        self._end()

    def _ask(self, grammar: str) -> Verdict:
        for is_last in (False, True):  # a process that has ended, for whatever reason, is replaced once
            if self._is_closed:
                break
            try:
                connection = (self._process or self._start()).connection
                connection.send_bytes(grammar.encode())
                return msgspec.msgpack.decode(_receive(connection, MAX_WALL_S + 1.0), type=Verdict)
            except (EOFError, OSError):
                self._end()
                if is_last and not self._is_closed:
                    logger.exception("The process that tries grammars ends or does not answer.")
        return Verdict(error="grammars cannot be tried at present; the log says why")

    def _start(self) -> ChildProcess:
        process = self._process = ChildProcess("infer_engine.structured.sandbox_process")
        process.connection.send_bytes(msgspec.msgpack.encode(self._make_setup()))
        _receive(process.connection, START_TIMEOUT_S)  # it is ready
        return process

    def _end(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            process.kill()


def _receive(connection: Connection, timeout_s: float) -> bytes:
    """Return the next message; raise EOFError if none comes in time, as if the process had ended."""
    if not connection.poll(timeout_s):
        raise EOFError
    return connection.recv_bytes()
