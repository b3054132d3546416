"""What the package shows, and what it costs to import."""

import subprocess
import sys

import pytest

import infer_cache


def test_the_public_names_are_these() -> None:
    assert infer_cache.__all__ == [
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
    assert all(getattr(infer_cache, name).__name__ == name for name in infer_cache.__all__)


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'Nonsense'"):
        _ = infer_cache.Nonsense


def test_the_managers_import_no_torch() -> None:
    code = (
        "import sys; from infer_cache import ContiguousKVCacheManager, HybridKVCacheManager, LayerGroups; "
        "from infer_cache import PagedKVCacheManager; HybridKVCacheManager; "
        "manager = PagedKVCacheManager([4], 4); manager.admit('a', 9, manager.find([], 9)); "
        "ContiguousKVCacheManager(2, 2, 2); LayerGroups.by_window([None, 4]); sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False, timeout=60).returncode == 0
