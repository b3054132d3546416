"""Who may share a prompt's blocks with whom: three answers. Knows salts; knows no blocks."""

from collections.abc import Callable

from infer_cache.block_hashes import BlockHashes
from infer_engine.ipc.messages import Submit

PrefixSharing = Callable[[Submit, int], BlockHashes | None]
"""From a submission and the block size to the names of its blocks; None: nobody finds them, and it finds nobody's."""


def share_with_all(submitted: Submit, block_size: int) -> BlockHashes | None:
    """Share with every request of the same `cache_salt`."""
    # Two kinds of names that never meet: no salt is like a salt of somebody.
    salt = "" if submitted.cache_salt is None else f"salt {submitted.cache_salt}"
    return BlockHashes(block_size, salt=salt)


def share_with_siblings(submitted: Submit, block_size: int) -> BlockHashes | None:
    """Share with the other sequences of the same request alone."""
    if submitted.sibling_group is None:
        return None
    return BlockHashes(block_size, salt=f"siblings {submitted.sibling_group}")


def share_with_nobody(submitted: Submit, block_size: int) -> BlockHashes | None:
    """Share nothing, as slots of a contiguous cache must."""
    del submitted, block_size
    return None
