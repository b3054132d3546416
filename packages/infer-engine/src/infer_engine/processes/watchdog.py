"""`Watchdog`: detects a step that does not end, by a timer of the event loop."""

import asyncio
import logging
from collections.abc import Callable

logger = logging.getLogger(__name__)

CHECKS_PER_TIMEOUT = 10
MAX_CHECK_INTERVAL_S = 1.0


class Watchdog:
    """Checks the age of the current step by a timer that runs only while steps are expected.

    A step that is late in two checks in a row is stuck. One check is not enough: after a pause of the event loop or of
    the whole machine any step looks late, but a live core goes on before the next check.
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
            step_age_s: returns the age of the current step, or None between steps.
            describe_step: returns where the step is, for the log.
            is_needed: returns whether steps are expected; the timer goes on while they are.
            on_stuck: handles a stuck step.
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
        """Stop the timer."""
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
