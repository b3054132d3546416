"""The clock of a soak."""

import time


class Clock:
    """Seconds since a soak's start."""

    def __init__(self) -> None:
        """Start now."""
        self._start_s = time.monotonic()

    def now_s(self) -> float:
        """Return the seconds since the start."""
        return time.monotonic() - self._start_s
