"""`BlockHashes`: a hash for each full block of a sequence, over all tokens up to the block's end.

    hash 0 = SHA-256(root, tokens of block 0)    hash 1 = SHA-256(hash 0, tokens of block 1)    ...

Two blocks have the same hash only if all tokens before them are equal too, as their keys and values depend on those.
The root comes from a salt and from the format of the cache. Tenants with different salts never share a block, and
cannot tell by timing whether others have sent a text. In another dtype, or with other scales, a block would be other
bytes. The hash is a cryptographic one, because a collision would give one request another's context.
"""

import hashlib
from array import array
from collections.abc import Sequence


class BlockHashes:
    """The hashes of one sequence's full blocks, each computed once."""

    __slots__ = ("_block_size", "_hashes", "_root")

    def __init__(self, block_size: int, *, salt: str = "", kv_format: str = "") -> None:
        """Hash blocks of `block_size` tokens.

        Args:
            block_size: tokens of a block.
            salt: only sequences with the same one have hashes in common.
            kv_format: format of keys and values in the cache, from `KVPool.kv_format`; likewise.
        """
        self._block_size = block_size
        self._root = hashlib.sha256(f"{len(kv_format)} {kv_format}{salt}".encode()).digest()
        self._hashes: list[bytes] = []

    def upto(self, token_ids: Sequence[int], num_tokens: int) -> list[bytes]:
        """Return the hashes of all full blocks among the first `num_tokens` tokens, and of later ones already computed.

        `token_ids` must begin with the tokens of every earlier call.
        """
        hashes, size = self._hashes, self._block_size
        for start in range(len(hashes) * size, num_tokens - size + 1, size):
            parent = hashes[-1] if hashes else self._root
            hashes.append(hashlib.sha256(parent + array("q", token_ids[start : start + size]).tobytes()).digest())
        return hashes
