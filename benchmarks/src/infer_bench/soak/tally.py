"""Counts what became of each thing that clients of a soak sent; the clock of a soak."""

import time
from collections import Counter
from collections.abc import Awaitable
from dataclasses import dataclass, field
from typing import Literal

import httpx
import msgspec

Outcome = Literal["answered", "refused", "disconnected", "failed"]
OUTCOMES: tuple[Outcome, ...] = ("answered", "refused", "disconnected", "failed")
MAX_FAILURES_KEPT = 20


class UnexpectedReplyError(Exception):
    """The server answered with what it must not answer."""


FAILURES = (OSError, httpx.TransportError, UnexpectedReplyError, msgspec.MsgspecError)
"""What a server that fails shows its clients; a timeout is an `OSError`."""


class Clock:
    """Seconds since a soak's start."""

    def __init__(self) -> None:
        """Start now."""
        self._start_s = time.monotonic()

    def now_s(self) -> float:
        """Return the seconds since the start."""
        return time.monotonic() - self._start_s


@dataclass(slots=True)
class Tally:
    """The requests that clients sent, by kind, and how each exchange ended.

    Attributes:
        sent: exchanges that have begun.
        ended: exchanges by how they ended, each in one of `OUTCOMES`.
        failures: what the first failures were.
    """

    sent: Counter[str] = field(default_factory=Counter)
    ended: Counter[tuple[str, Outcome]] = field(default_factory=Counter)
    failures: list[str] = field(default_factory=list)

    async def count(self, kind: str, exchange: Awaitable[Outcome]) -> None:
        """Count one exchange of `kind` and its outcome; an error of the server's is a failure."""
        self.sent[kind] += 1
        try:
            outcome = await exchange
        except FAILURES as error:
            outcome = "failed"
            if len(self.failures) < MAX_FAILURES_KEPT:
                self.failures.append(f"{kind}: {type(error).__name__}: {error}"[:500])
        self.ended[kind, outcome] += 1

    def total(self, outcome: Outcome) -> int:
        """Return how many exchanges of all kinds ended so."""
        return sum(count for (_, found), count in self.ended.items() if found == outcome)

    def rows(self) -> list[list[object]]:
        """Return kind, sent, and the count of each outcome."""
        return [[kind, self.sent[kind], *(self.ended[kind, outcome] for outcome in OUTCOMES)] for kind in self.sent]
