"""`Watchdog`: notices a step that does not end. Knows a clock, a thread and an event loop; knows no requests."""

import asyncio
import logging
import sys
import threading
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager

logger = logging.getLogger(__name__)

CHECKS_PER_TIMEOUT = 10
MAX_CHECK_INTERVAL_S = 1.0


class Watchdog:
    """Looks at a thread's steps from an event loop, by a timer that exists only while there is something to wait for.

    Steps are marked in the thread, by `step_under_way`; all other methods are for the event loop.
    """

    def __init__(
        self,
        *,
        timeout_s: float,
        clock: Callable[[], float],
        is_needed: Callable[[], bool],
        on_stuck: Callable[[], None],
    ) -> None:
        """Call `on_stuck` once when a step takes longer than `timeout_s` by `clock`; look while `is_needed`."""
        self._timeout_s = timeout_s
        self._clock = clock
        self._is_needed = is_needed
        self._on_stuck = on_stuck
        self._interval_s = min(timeout_s / CHECKS_PER_TIMEOUT, MAX_CHECK_INTERVAL_S)
        self._step_began_s: float | None = None
        self._thread: threading.Thread | None = None
        self._timer: asyncio.TimerHandle | None = None

    @property
    def is_watching(self) -> bool:
        """Whether the timer runs."""
        return self._timer is not None

    @contextmanager
    def step_under_way(self) -> Iterator[None]:
        """Mark the caller's thread as computing a step."""
        self._thread = threading.current_thread()
        self._step_began_s = self._clock()
        try:
            yield
        finally:
            self._step_began_s = None

    def watch(self) -> None:
        """Start the timer on the running event loop, unless it runs."""
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(self._interval_s, self._check)

    def stop(self) -> None:
        """Look no more."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _check(self) -> None:
        self._timer = None
        began_s = self._step_began_s  # the thread may end the step at any time: read once
        if began_s is not None and self._clock() - began_s > self._timeout_s:
            logger.error(
                "A step takes longer than %g s. The core's thread is here:\n%s", self._timeout_s, self._stack()
            )
            self._on_stuck()
        elif began_s is not None or self._is_needed():
            self.watch()

    def _stack(self) -> str:
        assert self._thread is not None
        frame = sys._current_frames().get(self._thread.ident or 0)  # noqa: SLF001 - the documented way to another thread's stack
        return "".join(traceback.format_stack(frame)) if frame else "(the thread has ended)"
