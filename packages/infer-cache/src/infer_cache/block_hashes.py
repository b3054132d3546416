"""Names for blocks: a digest of all tokens up to a block's end. Knows token ids; knows no blocks' memory.

    digest 0 = SHA-256(root, tokens of block 0)    digest 1 = SHA-256(digest 0, tokens of block 1)    ...

Two blocks have one name only if everything before them is equal too, which is what their keys and values depend on.
The root comes from a salt, so that tenants with different salts never share a block, and cannot tell by timing what
others have sent. A cryptographic hash: a collision would give one request another's context.
"""

import hashlib
from array import array
from collections.abc import Sequence


class BlockHashes:
    """The names of one sequence's full blocks, computed once as its tokens come."""

    __slots__ = ("_block_size", "_digests", "_root")

    def __init__(self, block_size: int, *, salt: str = "") -> None:
        """Name blocks of `block_size` tokens; only sequences of the same `salt` have names in common."""
        self._block_size = block_size
        self._root = hashlib.sha256(salt.encode()).digest()
        self._digests: list[bytes] = []

    def upto(self, token_ids: Sequence[int], num_tokens: int) -> list[bytes]:
        """Return the names of all full blocks among the first `num_tokens` tokens, or of more where they are known.

        `token_ids` must begin with the tokens of every earlier call.
        """
        digests, size = self._digests, self._block_size
        for start in range(len(digests) * size, num_tokens - size + 1, size):
            parent = digests[-1] if digests else self._root
            digests.append(hashlib.sha256(parent + array("q", token_ids[start : start + size]).tobytes()).digest())
        return digests
