"""Logs stalls of the event loop, during which no request is served."""

import asyncio
import logging

logger = logging.getLogger(__name__)

_POLL_S = 0.05
LONG_STALL_S = 0.25


async def watch_for_stalls() -> None:
    """Log every stall of the running event loop that is longer than `LONG_STALL_S`; runs until it is cancelled.

    The level is `info`: on a busy machine, stalls are normal.
    """
    clock = asyncio.get_running_loop().time
    while True:
        expected_s = clock() + _POLL_S
        await asyncio.sleep(_POLL_S)
        late_s = clock() - expected_s
        if late_s > LONG_STALL_S:
            logger.info("the event loop stood still for %.0f ms", late_s * 1000)
