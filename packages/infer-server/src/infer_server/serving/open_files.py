"""The limit on open files of this process: each connection takes one."""

import asyncio
import errno
import logging
import resource
from typing import Any

logger = logging.getLogger(__name__)

_OTHER_FILES = 256  # weights, libraries, pipes, logs
_LOG_INTERVAL_S = 10.0


def raise_open_file_limit(max_connections: int) -> int:
    """Raise the process's limit for `max_connections`, as far as possible; return how many connections it allows."""
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


class OpenFileLimitHandler:
    """An exception handler of an event loop that logs "too many open files" at most once in ten seconds.

    The loop itself then pauses accepting for a moment, and keeps serving open connections.
    """

    def __init__(self) -> None:
        """Log the first shortage at once."""
        self._quiet_until_s = 0.0

    def __call__(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """Log an error that the loop reports in `context`."""
        match context:
            case {"socket": _, "exception": OSError(errno=errno.EMFILE | errno.ENFILE)}:
                if loop.time() >= self._quiet_until_s:
                    self._quiet_until_s = loop.time() + _LOG_INTERVAL_S
                    logger.error("no connection can be accepted: too many files are open; raise `ulimit -n`")
            case _:
                loop.default_exception_handler(context)
