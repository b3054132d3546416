"""The event loop that serves: uvloop, which is written in C, where it is installed; else asyncio's own."""

import asyncio


def new_event_loop() -> asyncio.AbstractEventLoop:
    """Return a loop for `asyncio.Runner`. Servers behave alike on either; they differ in CPU time."""
    try:
        import uvloop  # noqa: PLC0415 - some systems have no builds of it
    except ImportError:
        return asyncio.new_event_loop()
    return uvloop.new_event_loop()
