"""Who owns which KV memory: blocks, block tables, and the views that models attend through.

The names that hold tensors are imported when they are first used, so that bookkeeping alone never imports torch.
"""

from typing import TYPE_CHECKING, Any

from infer_cache.block_map import BlockMap
from infer_cache.blocks import BlockAllocator, OutOfBlocksError
from infer_cache.digests import PrefixDigests
from infer_cache.group import GroupSpec
from infer_cache.layer_groups import LayerGroups
from infer_cache.reach import blocks_in_reach
from infer_cache.slots import SlotTables
from infer_cache.tables import AdmissionBudget, PagedTables, PrefixHit, TableEdit, UnknownSequenceError

if TYPE_CHECKING:
    from infer_cache.pool import KVPool
    from infer_cache.view import PagedCacheView

__all__ = [
    "AdmissionBudget",
    "BlockAllocator",
    "BlockMap",
    "GroupSpec",
    "KVPool",
    "LayerGroups",
    "OutOfBlocksError",
    "PagedCacheView",
    "PagedTables",
    "PrefixDigests",
    "PrefixHit",
    "SlotTables",
    "TableEdit",
    "UnknownSequenceError",
    "blocks_in_reach",
]


def __getattr__(name: str) -> Any:
    match name:
        case "KVPool":
            from infer_cache.pool import KVPool  # noqa: PLC0415 - imports torch: only when used

            return KVPool
        case "PagedCacheView":
            from infer_cache.view import PagedCacheView  # noqa: PLC0415 - imports torch: only when used

            return PagedCacheView
        case _:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
