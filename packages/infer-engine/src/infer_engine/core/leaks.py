"""`count_leaks`: the audit of the memory in a step without work."""

import logging

from infer_cache.leaks import describe_leaks
from infer_engine.scheduling import KVCacheManager

logger = logging.getLogger(__name__)


def count_leaks(kv_cache_manager: KVCacheManager, num_known: int) -> int:
    """Return the number of leaked blocks; where it is not `num_known`, the log says whose they were."""
    leaked = kv_cache_manager.audit()
    if leaked and len(leaked) != num_known:
        logger.error(
            "%d KV blocks are leaked, which is a bug: %s. They are not among the %d free blocks that are kept for the "
            "prefixes in them.",
            len(leaked),
            describe_leaks(leaked),
            kv_cache_manager.num_idle_blocks,
        )
    return len(leaked)
