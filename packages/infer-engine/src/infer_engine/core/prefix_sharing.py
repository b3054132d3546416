"""Decides which requests may share the blocks of a prompt, by the salt of its block hashes."""

from collections.abc import Callable

from infer_cache.block_hashes import BlockHashes
from infer_engine.messages import Submit

FirstPosition = Callable[[int], int]
"""Takes the longest length of a sequence; returns the position of its first token."""

PrefixSharing = Callable[[Submit, int], BlockHashes | None]
"""Takes a submission and the block size; returns the hashes of its blocks, or None if it shares no blocks."""


def share_with_all(
    submitted: Submit, block_size: int, *, kv_format: str = "", first_position: FirstPosition | None = None
) -> BlockHashes | None:
    """Share with every request of the same `cache_salt`; arguments as for `keys_format`."""
    # The prefix keeps a request without a salt apart from one with an empty salt.
    salt = "" if submitted.cache_salt is None else f"salt {submitted.cache_salt}"
    kv_format = keys_format(submitted, kv_format=kv_format, first_position=first_position)
    return BlockHashes(block_size, salt=salt, kv_format=kv_format)


def share_with_siblings(
    submitted: Submit, block_size: int, *, kv_format: str = "", first_position: FirstPosition | None = None
) -> BlockHashes | None:
    """Share only with the other sequences of the same request; arguments as for `keys_format`."""
    if submitted.sibling_group is None:
        return None
    kv_format = keys_format(submitted, kv_format=kv_format, first_position=first_position)
    return BlockHashes(block_size, salt=f"siblings {submitted.sibling_group}", kv_format=kv_format)


def share_with_none(submitted: Submit, block_size: int) -> BlockHashes | None:
    """Share no blocks; the contiguous cache needs this."""
    del submitted, block_size
    return None


def keys_format(submitted: Submit, *, kv_format: str, first_position: FirstPosition | None) -> str:
    """Return how the cache holds the request's keys, which differ where long sequences are rotated in their own way.

    Args:
        submitted: the request.
        kv_format: as for `BlockHashes`.
        first_position: the model's `CausalLM.first_position`; None: all sequences begin at 0.
    """
    longest = len(submitted.prompt_token_ids) + submitted.max_tokens
    return kv_format if first_position is None or not first_position(longest) else f"{kv_format} long"
