"""`ThreadCoreClient`: runs a core in a thread of this process."""

import logging
import queue
import threading
import time
from collections.abc import Callable

from infer_engine.ipc.core_client import ENGINE_DEAD, CoreCallbacks
from infer_engine.ipc.core_loop import CoreLoop, Inbox, StepTimer
from infer_engine.ipc.core_protocol import CoreProtocol
from infer_engine.messages import Halt, StepResult, ToCore
from infer_engine.structured.compiler import GrammarCompiler

logger = logging.getLogger(__name__)


class ThreadCoreClient:
    """Client of a core in a thread of this process. `infer_engine.ipc.core_client.CoreClient` documents each method."""

    def __init__(
        self,
        core: CoreProtocol,
        *,
        grammars: GrammarCompiler | None = None,
        close: Callable[[], None] = lambda: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Step `core`, which nothing else may use afterwards; `clock` measures the age of a step.

        `grammars` are those of the core, if it has any; `close` is called after its last step.
        """
        self._close = close
        self._timer = StepTimer(clock)
        self._inbox: Inbox = queue.SimpleQueue()
        self._loop = CoreLoop(core, emit=self._emit, timer=self._timer, inbox=self._inbox, grammars=grammars)
        self._thread = threading.Thread(target=self._run, name="infer-core", daemon=True)
        self._callbacks: CoreCallbacks | None = None

    def start(self, callbacks: CoreCallbacks) -> None:
        """Start the thread; it sleeps until the first message."""
        self._callbacks = callbacks
        self._thread.start()

    def send(self, message: ToCore) -> None:
        """Queue a message for the core."""
        self._inbox.put(message)

    def stop(self) -> None:
        """End the thread after the current step."""
        self._inbox.put(Halt())

    def join(self) -> None:
        """Wait for the thread: a process must not end while a thread runs torch code."""
        self._thread.join()

    def abandon(self) -> None:
        """Do nothing: a thread cannot be ended from outside."""

    def step_age_s(self) -> float | None:
        """Return the age of the current step."""
        return self._timer.age_s()

    def describe_step(self) -> str:
        """Return the thread's stack."""
        return f"The core's thread is here:\n{self._timer.stack()}"

    def _emit(self, result: StepResult) -> None:
        assert self._callbacks is not None
        self._callbacks.on_result(result)

    def _run(self) -> None:
        assert self._callbacks is not None
        try:
            self._loop.run()
        except BaseException:  # streams must not wait for a thread that has ended
            logger.exception("The engine core failed; every request in it fails with it.")
            self._callbacks.on_lost(ENGINE_DEAD)
        finally:
            self._close()
            self._callbacks.on_ended()
