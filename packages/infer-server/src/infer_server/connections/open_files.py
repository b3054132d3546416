"""The limit on open files of this process: each connection takes one."""

import logging
import resource

logger = logging.getLogger(__name__)

_OTHER_FILES = 256  # weights, libraries, pipes, logs


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
