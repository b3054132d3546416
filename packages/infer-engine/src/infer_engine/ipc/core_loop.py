"""`CoreLoop`: passes messages to a core and steps it while it has work."""

import queue
import sys
import threading
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from infer_engine.ipc.core_protocol import CoreProtocol
from infer_engine.ipc.grammar_gate import GrammarGate
from infer_engine.messages import Halt, StepResult, Submit, ToCore
from infer_engine.structured.compiler import GrammarCompiler

MAX_WAIT_S = 3600.0
"""Longest wait for a message; locks refuse waits of years."""


@dataclass(frozen=True, slots=True)
class Compiled:
    """The grammar of `submission` has been compiled, or cannot be."""

    submission: Submit


Inbox = queue.SimpleQueue[ToCore | Halt | Compiled]


class StepTimer:
    """Tells any thread how long the current step has taken, and where it is."""

    def __init__(self, clock: Callable[[], float]) -> None:
        """Measure with `clock`, a monotonic clock in seconds."""
        self._clock = clock
        self._started_s: float | None = None
        self._thread: threading.Thread | None = None

    @contextmanager
    def running_step(self) -> Iterator[None]:
        """Mark that the caller's thread computes a step."""
        self._thread = threading.current_thread()
        self._started_s = self._clock()
        try:
            yield
        finally:
            self._started_s = None

    def age_s(self) -> float | None:
        """Return how many seconds the current step has taken, or None between steps."""
        started_s = self._started_s  # the thread may end the step at any time: read once
        return None if started_s is None else self._clock() - started_s

    def stack(self) -> str:
        """Return the stack of the thread that computed the latest step."""
        frame = sys._current_frames().get(self._thread.ident or 0) if self._thread else None  # noqa: SLF001 - the documented way to another thread's stack
        return "".join(traceback.format_stack(frame)) if frame else "(the thread has ended)"


class CoreLoop:
    """Steps a core in the thread that calls `run`. Messages come from any thread and are handled between steps."""

    def __init__(
        self,
        core: CoreProtocol,
        *,
        emit: Callable[[StepResult], None],
        timer: StepTimer,
        inbox: Inbox,
        grammars: GrammarCompiler | None = None,
    ) -> None:
        """Step `core`, handle messages from `inbox` and pass each result to `emit`. Nothing else may use `core`.

        Submissions wait while `grammars`, which are those of `core`, compile theirs.
        """
        self._core = core
        self._emit = emit
        self._timer = timer
        self._inbox = inbox
        self._gate = (
            None if grammars is None else GrammarGate(grammars, on_compiled=lambda each: inbox.put(Compiled(each)))
        )

    def run(self) -> None:
        """Step while there is work, until a `Halt` message comes.

        Raises:
            Exception: the core cannot go on.
        """
        while self._take_messages():
            had_work = self._core.has_work
            self._step()
            if had_work and not self._core.has_work:
                self._step()  # an idle step audits the blocks, when no request waits for it

    def _step(self) -> None:
        with self._timer.running_step():
            result = self._core.step()
        self._emit(result)

    def _take_messages(self) -> bool:
        """Pass all waiting messages to the core; block while it has no work. Return False on `Halt`."""
        wait_s = self._core.seconds_until_work()
        try:
            message = self._inbox.get(timeout=None if wait_s is None else min(wait_s, MAX_WAIT_S))
            while not isinstance(message, Halt):
                self._handle(message)
                message = self._inbox.get_nowait()
        except queue.Empty:
            return True
        return False

    def _handle(self, message: ToCore | Compiled) -> None:
        """Pass a message to the core, unless it has to wait for its grammar."""
        if isinstance(message, Compiled):
            if self._gate is not None and self._gate.release(message.submission):
                self._core.handle(message.submission)
        elif self._gate is None or not self._gate.holds(message):
            self._core.handle(message)
