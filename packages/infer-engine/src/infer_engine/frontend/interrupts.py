"""Delays ^C until a step of the core is complete, because a half-done step leaves no valid state."""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


@contextmanager
def deferred_interrupts() -> Iterator[None]:
    """Delay an interrupt (SIGINT) until the block ends; a second one takes effect at once.

    Does nothing outside the main thread, which is the only one that signals interrupt, and does nothing if SIGINT has
    no Python handler.
    """
    handler = signal.getsignal(signal.SIGINT)
    if threading.current_thread() is not threading.main_thread() or not callable(handler):
        yield
        return
    held: list[FrameType | None] = []

    def hold(number: int, frame: FrameType | None) -> None:
        held.append(frame)
        if len(held) > 1:
            handler(number, frame)

    signal.signal(signal.SIGINT, hold)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, handler)
        if held:
            handler(signal.SIGINT, held[0])
