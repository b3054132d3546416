"""What the package shows, and what it costs to import."""

import subprocess
import sys

import pytest

import infer_cache


def test_the_public_names_are_these() -> None:
    assert sorted(infer_cache.__all__) == [
        "BlockAllocator",
        "BlockTables",
        "KVPool",
        "OutOfBlocksError",
        "PagedCacheView",
        "UnknownSequenceError",
    ]
    assert all(getattr(infer_cache, name).__name__ == name for name in infer_cache.__all__)


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'Nonsense'"):
        _ = infer_cache.Nonsense


def test_bookkeeping_imports_no_torch() -> None:
    code = "import sys, infer_cache; infer_cache.BlockTables(4, 4).reserve('a', 9); sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False, timeout=60).returncode == 0
