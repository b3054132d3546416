"""How many files this process may have open: each connection is one. Knows the operating system's limit only."""

import asyncio
import errno
import logging
import resource
from typing import Any

logger = logging.getLogger(__name__)

_OTHER_FILES = 256  # weights, libraries, pipes, logs
_SILENCE_S = 10.0


def allow_connections(max_connections: int) -> int:
    """Raise this process's own limit, as far as it may, to what `max_connections` need; return how many it allows."""
    wanted = max_connections + _OTHER_FILES
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or soft >= wanted:
        return max_connections
    if hard == resource.RLIM_INFINITY or hard >= wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
        return max_connections
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    allowed = hard - min(_OTHER_FILES, hard // 2)
    logger.warning(
        "`max_connections` is %d, but with at most %d files open there is room for %d; raise `ulimit -n`",
        max_connections,
        hard,
        allowed,
    )
    return allowed


class ShortageReport:
    """An event loop's exception handler that says once in a while, not for each attempt, that no file can be opened.

    The loop itself pauses accepting then, and goes on with the connections that it has.
    """

    def __init__(self) -> None:
        """Have said nothing yet."""
        self._silent_until_s = 0.0

    def __call__(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """Handle what the loop reports in `context`."""
        match context:
            case {"socket": _, "exception": OSError(errno=errno.EMFILE | errno.ENFILE)}:
                if loop.time() >= self._silent_until_s:
                    self._silent_until_s = loop.time() + _SILENCE_S
                    logger.error("no connection can be accepted: too many files are open; raise `ulimit -n`")
            case _:
                loop.default_exception_handler(context)
