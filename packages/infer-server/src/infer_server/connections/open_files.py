"""The limit on open files of this process: each connection takes one."""

import logging
import resource

logger = logging.getLogger(__name__)

_OTHER_FILES = 256  # weights, libraries, pipes, logs
_MOST_OF_MACOS = 10_240
"""`OPEN_MAX`: macOS may refuse a higher soft limit, whatever the hard limit says (its `setrlimit(2)`)."""


def raise_open_file_limit(max_connections: int) -> int:
    """Raise the process's limit for `max_connections`, as far as possible; return how many connections it allows."""
    wanted = max_connections + _OTHER_FILES
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or soft >= wanted:
        return max_connections
    most = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
    except ValueError:
        most = max(soft, min(most, _MOST_OF_MACOS))
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
    if most == wanted:
        return max_connections
    allowed = most - min(_OTHER_FILES, most // 2)
    logger.warning(
        "`max_connections` is %d, but with at most %d files open there is room for %d; raise `ulimit -n`",
        max_connections,
        most,
        allowed,
    )
    return allowed
