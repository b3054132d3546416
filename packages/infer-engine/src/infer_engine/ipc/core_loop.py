"""`CoreLoop`: takes messages and steps a core while there is work. Knows a queue and a clock; no thread, no front."""

import queue
import sys
import threading
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from infer_engine.ipc.core_protocol import CoreProtocol
from infer_engine.ipc.messages import Halt, StepResult, ToCore

# A wait for messages that ends by itself: locks refuse waits of years.
MAX_WAIT_S = 3600.0

Inbox = queue.SimpleQueue[ToCore | Halt]


class StepTimer:
    """Says, to any thread, for how long the step under way has been computed, and where it is."""

    def __init__(self, clock: Callable[[], float]) -> None:
        """Count by `clock`, in seconds that never go back."""
        self._clock = clock
        self._began_s: float | None = None
        self._thread: threading.Thread | None = None

    @contextmanager
    def step_under_way(self) -> Iterator[None]:
        """Mark the caller's thread as computing a step."""
        self._thread = threading.current_thread()
        self._began_s = self._clock()
        try:
            yield
        finally:
            self._began_s = None

    def age_s(self) -> float | None:
        """Return the seconds that the step under way has taken; None: there is none."""
        began_s = self._began_s  # the thread may end the step at any time: read once
        return None if began_s is None else self._clock() - began_s

    def stack(self) -> str:
        """Return the stack of the thread that computed last."""
        frame = sys._current_frames().get(self._thread.ident or 0) if self._thread else None  # noqa: SLF001 - the documented way to another thread's stack
        return "".join(traceback.format_stack(frame)) if frame else "(the thread has ended)"


class CoreLoop:
    """Steps a core in the thread that calls `run`; messages come from any thread, and are taken between steps."""

    def __init__(
        self, core: CoreProtocol, *, emit: Callable[[StepResult], None], timer: StepTimer, inbox: Inbox
    ) -> None:
        """Step `core`, which nobody else may touch, on messages from `inbox`; `emit` what each step made."""
        self._core = core
        self._emit = emit
        self._timer = timer
        self._inbox = inbox

    def run(self) -> None:
        """Step while there is work, until told to halt.

        Raises:
            Exception: the core cannot go on.
        """
        while self._take_messages():
            had_work = self._core.has_work
            self._step()
            if had_work and not self._core.has_work:
                self._step()  # an idle step: it audits the blocks, and nobody waits for it

    def _step(self) -> None:
        with self._timer.step_under_way():
            result = self._core.step()
        self._emit(result)

    def _take_messages(self) -> bool:
        """Hand all waiting messages to the core, sleeping for one until it has work; False when told to halt."""
        wait_s = self._core.seconds_until_work()
        try:
            message = self._inbox.get(timeout=None if wait_s is None else min(wait_s, MAX_WAIT_S))
            while not isinstance(message, Halt):
                self._core.handle(message)
                message = self._inbox.get_nowait()
        except queue.Empty:
            return True
        return False
