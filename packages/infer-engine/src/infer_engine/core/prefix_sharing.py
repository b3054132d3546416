"""Decides which requests may share the blocks of a prompt, by the salt of its block hashes."""

from collections.abc import Callable

from infer_cache.block_hashes import BlockHashes
from infer_engine.ipc.messages import Submit

PrefixSharing = Callable[[Submit, int], BlockHashes | None]
"""Takes a submission and the block size; returns the hashes of its blocks, or None if it shares no blocks."""


def share_with_all(submitted: Submit, block_size: int, *, kv_format: str = "") -> BlockHashes | None:
    """Share with every request of the same `cache_salt`; `kv_format` as for `BlockHashes`."""
    # The prefix keeps a request without a salt apart from one with an empty salt.
    salt = "" if submitted.cache_salt is None else f"salt {submitted.cache_salt}"
    return BlockHashes(block_size, salt=salt, kv_format=kv_format)


def share_with_siblings(submitted: Submit, block_size: int, *, kv_format: str = "") -> BlockHashes | None:
    """Share only with the other sequences of the same request; `kv_format` as for `BlockHashes`."""
    if submitted.sibling_group is None:
        return None
    return BlockHashes(block_size, salt=f"siblings {submitted.sibling_group}", kv_format=kv_format)


def share_with_none(submitted: Submit, block_size: int) -> BlockHashes | None:
    """Share no blocks; the contiguous cache needs this."""
    del submitted, block_size
    return None
