"""Builds the `BatchSnapshot` of a core between two steps."""

from collections.abc import Iterable, Mapping
from itertools import islice
from types import MappingProxyType

from infer_engine.protocol import BatchSnapshot, EngineStats, SequenceSnapshot
from infer_engine.protocol.snapshot import MAX_BLOCKS_SHOWN, MAX_SEQUENCES_SHOWN
from infer_engine.protocol.stats import NO_DRAFTS
from infer_engine.request import Request, RequestState
from infer_engine.scheduling import KVCacheManager

_STATES: Mapping[RequestState, str] = MappingProxyType(
    {RequestState.WAITING: "waiting", RequestState.PREFILL: "prefill", RequestState.DECODE: "decode"}
)


def take_snapshot(requests: Iterable[Request], kv_cache_manager: KVCacheManager, stats: EngineStats) -> BatchSnapshot:
    """Return the snapshot of `requests`, which are the running and waiting ones, up to `MAX_SEQUENCES_SHOWN`."""
    blocks = kv_cache_manager.map_blocks(MAX_BLOCKS_SHOWN)
    return BatchSnapshot(
        stats=stats,
        sequences=[
            SequenceSnapshot(
                request_id=request.request_id,
                state=_STATES[request.state],  # type: ignore[arg-type]  # all that wait or run are in these states
                num_prompt_tokens=request.num_prompt_tokens,
                num_computed_tokens=request.num_computed_tokens,
                num_cached_tokens=request.num_cached_tokens,
                num_completion_tokens=request.num_completion_tokens,
                drafts=request.draft_counts or NO_DRAFTS,
                block_ids=blocks.block_tables.get(request.request_id, []),
            )
            for request in islice(requests, MAX_SEQUENCES_SHOWN)
        ],
        block_size=kv_cache_manager.block_size,
        num_blocks=blocks.num_blocks,
        holders=blocks.ref_counts,
    )
