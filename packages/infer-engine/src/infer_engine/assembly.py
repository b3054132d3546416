"""From a configuration and sizes to a core's parts: tables, scheduler, sharing. Knows no model and no tensors."""

import time
from collections.abc import Callable, Sequence

from infer_cache.contiguous_manager import ContiguousKVCacheManager
from infer_cache.group_tables import GroupSpec
from infer_cache.paged_manager import PagedKVCacheManager
from infer_engine.core.engine_core import Scheduler
from infer_engine.core.prefix_sharing import PrefixSharing, share_with_all, share_with_nobody, share_with_siblings
from infer_engine.protocol import EngineConfig
from infer_engine.scheduling import POLICIES, ContinuousScheduler, KVCacheManager, SchedulerLimits, StaticScheduler


def build_kv_cache_manager(
    config: EngineConfig,
    limits: SchedulerLimits,
    *,
    num_blocks: Sequence[int],
    windows: Sequence[int | None],
    block_size: int,
) -> KVCacheManager:
    """Return the bookkeeping of a cache that has `num_blocks` blocks and a window, or none, by group of layers."""
    match config.resolved_kv_cache_backend:
        case "contiguous":
            (num_in_all,) = num_blocks
            return ContiguousKVCacheManager(limits.max_batch_size, num_in_all // limits.max_batch_size, block_size)
        case "paged":
            groups = [
                GroupSpec(num_blocks=count, window=window) for count, window in zip(num_blocks, windows, strict=True)
            ]
            return PagedKVCacheManager(
                groups, block_size, max_chunk=limits.prefill_chunk_size, keeps_prefixes=config.caches_prefixes
            )


def build_scheduler(
    config: EngineConfig,
    kv_cache_manager: KVCacheManager,
    limits: SchedulerLimits,
    *,
    clock: Callable[[], float] = time.monotonic,
) -> Scheduler:
    """Return what schedules over `tables`; `clock` counts the seconds that a static batch waits to fill."""
    match config.batching_mode:
        case "static":
            return StaticScheduler(
                kv_cache_manager, limits, batch_wait_timeout_s=config.batch_wait_timeout_s, clock=clock
            )
        case "continuous":
            return ContinuousScheduler(kv_cache_manager, limits, POLICIES[config.scheduler_policy])


def choose_sharing(config: EngineConfig) -> PrefixSharing:
    """Return who may find whose blocks."""
    if config.resolved_kv_cache_backend == "contiguous":
        return share_with_nobody
    return share_with_all if config.caches_prefixes else share_with_siblings
