"""`Watchdog`: notices a step that does not end. Knows an event loop's timers; knows no thread and no requests."""

import asyncio
import logging
from collections.abc import Callable

logger = logging.getLogger(__name__)

CHECKS_PER_TIMEOUT = 10
MAX_CHECK_INTERVAL_S = 1.0


class Watchdog:
    """Looks at a core's steps from an event loop, by a timer that exists only while there is something to wait for.

    A step is stuck that is late at two looks in a row. One look finds whatever was under way late where the event loop
    stood still, or the whole machine was suspended; by the next one a live core has gone on.
    """

    def __init__(
        self,
        *,
        timeout_s: float,
        step_age_s: Callable[[], float | None],
        describe_step: Callable[[], str],
        is_needed: Callable[[], bool],
        on_stuck: Callable[[], None],
    ) -> None:
        """Call `on_stuck` once when a step stays older than `timeout_s`.

        Args:
            timeout_s: seconds that a step may take.
            step_age_s: how long the step under way has taken; None: there is none.
            describe_step: where it is, for the log.
            is_needed: whether somebody waits for steps; the timer goes on while that is so.
            on_stuck: what to do about a stuck step.
        """
        self._timeout_s = timeout_s
        self._step_age_s = step_age_s
        self._describe_step = describe_step
        self._is_needed = is_needed
        self._on_stuck = on_stuck
        self._interval_s = min(timeout_s / CHECKS_PER_TIMEOUT, MAX_CHECK_INTERVAL_S)
        self._timer: asyncio.TimerHandle | None = None
        self._was_late = False

    @property
    def is_watching(self) -> bool:
        """Whether the timer runs."""
        return self._timer is not None

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
        age_s = self._step_age_s()
        is_late = age_s is not None and age_s > self._timeout_s
        if is_late and self._was_late:
            logger.error("A step takes longer than %g s. %s", self._timeout_s, self._describe_step())
            self._on_stuck()
        elif age_s is not None or self._is_needed():
            self.watch()
        self._was_late = is_late
