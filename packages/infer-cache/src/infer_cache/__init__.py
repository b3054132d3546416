"""KV cache memory: blocks, block tables, prefix caching, and the view that models attend through.

Knows tokens, blocks and the tensors that hold them; knows no model, no request and no schedule. `KVPool`,
`StatePool` and `PagedCacheView` are imported when they are first used, so that the managers alone never import torch.
"""

from typing import TYPE_CHECKING, Any

from infer_cache.block_allocator import BlockAllocator, OutOfBlocksError, UnknownSequenceError
from infer_cache.block_hashes import BlockHashes
from infer_cache.block_map import BlockMap
from infer_cache.contiguous_manager import ContiguousKVCacheManager
from infer_cache.layer_groups import LayerGroups
from infer_cache.leaks import LeakedBlock, describe_leaks
from infer_cache.paged_manager import AdmissionBudget, PagedKVCacheManager, PrefixHit, TableEdit
from infer_cache.sliding_window import max_blocks_in_window
from infer_cache.states.contiguous_hybrid import ContiguousHybridManager
from infer_cache.states.hybrid_manager import HybridKVCacheManager
from infer_cache.states.sequence_states import SequenceStates, StateMove
from infer_cache.states.state_slots import StateSlots

if TYPE_CHECKING:
    from infer_cache.pool import KVPool
    from infer_cache.states.state_pool import StatePool
    from infer_cache.view import PagedCacheView

__all__ = [
    "AdmissionBudget",
    "BlockAllocator",
    "BlockHashes",
    "BlockMap",
    "ContiguousHybridManager",
    "ContiguousKVCacheManager",
    "HybridKVCacheManager",
    "KVPool",
    "LayerGroups",
    "LeakedBlock",
    "OutOfBlocksError",
    "PagedCacheView",
    "PagedKVCacheManager",
    "PrefixHit",
    "SequenceStates",
    "StateMove",
    "StatePool",
    "StateSlots",
    "TableEdit",
    "UnknownSequenceError",
    "describe_leaks",
    "max_blocks_in_window",
]


def __getattr__(name: str) -> Any:
    match name:
        case "KVPool":
            from infer_cache.pool import KVPool  # noqa: PLC0415 - imports torch: only when used

            return KVPool
        case "PagedCacheView":
            from infer_cache.view import PagedCacheView  # noqa: PLC0415 - imports torch: only when used

            return PagedCacheView
        case "StatePool":
            from infer_cache.states.state_pool import StatePool  # noqa: PLC0415 - imports torch: only when used

            return StatePool
        case _:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
