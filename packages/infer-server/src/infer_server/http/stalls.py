"""Says when the event loop was held up: everything waited then, and whoever held it is to blame. Knows clocks only."""

import asyncio
import logging

logger = logging.getLogger(__name__)

_LOOK_S = 0.05
LONG_STALL_S = 0.25


async def watch_for_stalls() -> None:
    """Log each time the event loop of the caller stood still for more than `LONG_STALL_S`; runs until it is cancelled.

    It is information, not a warning: a machine that is short of processors does it to every process.
    """
    clock = asyncio.get_running_loop().time
    while True:
        expected_s = clock() + _LOOK_S
        await asyncio.sleep(_LOOK_S)
        late_s = clock() - expected_s
        if late_s > LONG_STALL_S:
            logger.info("the event loop stood still for %.0f ms", late_s * 1000)
