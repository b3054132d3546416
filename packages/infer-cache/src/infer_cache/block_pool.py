"""`BlockPool`: blocks with references, whose holders are known, which prefix caching finds by their hashes.

free ──allocate──> 1 reference <──add_reference, release──> n references
 ^                      │ release of the last reference
 │                      v
 ├──no────────── has a hash and idle blocks are kept?
 │                      │ yes
 │                      v
 └──evict───────────── idle ──add_reference──> 1 reference

An idle block is a cached free block: it has no references and counts as free, but keeps its content and is found by its
hash. Idle blocks are evicted when an allocation needs them, least recently used first.
"""

from collections.abc import Iterable, Sequence

from infer_cache.block_allocator import BlockAllocator, OutOfBlocksError


class BlockPool:
    """Blocks with references and hashes. Idle blocks count as free.

    A reference has a holder, by default none, which alone gives it back: a leaked block tells its holders.

    Attributes:
        num_evictions: idle blocks that were evicted for an allocation, since the start.
    """

    __slots__ = ("_allocator", "_block_of", "_hash_of", "_holders", "_idle", "_keeps_idle", "num_evictions")

    def __init__(self, num_blocks: int, *, keeps_idle: bool) -> None:
        """Start with all blocks free. `keeps_idle`: cached blocks without references stay idle until they are evicted.

        Raises:
            ValueError: `num_blocks` is negative.
        """
        self._allocator = BlockAllocator(num_blocks)
        self._keeps_idle = keeps_idle
        self._holders: dict[int, dict[str | None, int]] = {}  # by holder, its references: many may share a prefix
        self._hash_of: dict[int, bytes] = {}
        self._block_of: dict[bytes, int] = {}
        self._idle: dict[int, None] = {}  # a set in the order in which the blocks became idle
        self.num_evictions = 0

    @property
    def num_blocks(self) -> int:
        """Blocks, free or not."""
        return self._allocator.num_blocks

    @property
    def num_free(self) -> int:
        """Blocks without references, idle ones included."""
        return self._allocator.num_free + len(self._idle)

    @property
    def num_idle(self) -> int:
        """Cached free blocks: without references, but found by their hashes."""
        return len(self._idle)

    def is_referenced(self, block_id: int) -> bool:
        """Return whether a sequence references the block."""
        return block_id in self._holders

    def holders(self, block_id: int) -> tuple[str | None, ...]:
        """Return who holds the block's references, one for each, in the order in which holders took their first."""
        held = self._holders.get(block_id, {})
        return tuple(holder for holder, count in held.items() for _ in range(count))

    def is_cached(self, block_id: int) -> bool:
        """Return whether `find` returns the block for its hash."""
        return block_id in self._hash_of

    def ref_counts(self, max_blocks: int) -> list[int]:
        """Return the reference count of each block below `max_blocks`; -1 for an idle block."""
        return [
            -1 if block_id in self._idle else sum(self._holders.get(block_id, {}).values())
            for block_id in range(min(max_blocks, self.num_blocks))
        ]

    def find(self, block_hash: bytes) -> int | None:
        """Return the block that is cached under this hash, referenced or idle, or None."""
        return self._block_of.get(block_hash)

    def allocate(self, count: int, *, after: int | None = None, holder: str | None = None) -> list[int]:
        """Allocate `count` blocks with one reference of `holder` and no hash; `after` as for `BlockAllocator.allocate`.

        Where too few blocks are free otherwise, idle ones are evicted, least recently used first.

        Raises:
            OutOfBlocksError: fewer than `count` blocks are free or idle; nothing has changed.
        """
        num_missing = count - self._allocator.num_free
        if num_missing > len(self._idle):
            raise OutOfBlocksError(count, self.num_free, self.num_blocks)
        for _ in range(num_missing):
            self.uncache_block(next(iter(self._idle)))
            self.num_evictions += 1
        block_ids = self._allocator.allocate(count, after=after)
        for block_id in block_ids:
            self._holders[block_id] = {holder: 1}
        return block_ids

    def add_reference(self, block_ids: Sequence[int], *, holder: str | None = None) -> None:
        """Add a reference of `holder` to each of these blocks, which are referenced or idle.

        Raises:
            ValueError: one of them is free: it was evicted or released after it was found. Nothing has changed.
        """
        for block_id in block_ids:
            if block_id not in self._holders and block_id not in self._idle:
                raise ValueError(
                    f"`block_id` {block_id} is free; reference what `find` returns before other blocks are allocated."
                )
        for block_id in block_ids:
            holders = self._holders.get(block_id)
            if holders is None:
                del self._idle[block_id]
                self._holders[block_id] = {holder: 1}
            else:
                holders[holder] = holders.get(holder, 0) + 1

    def release(self, block_ids: Sequence[int], *, holder: str | None = None) -> None:
        """Remove a reference of `holder` from each of these blocks, in reverse order: a prefix's end is evicted first.

        Raises:
            ValueError: one of them has no reference of `holder`.
        """
        for block_id in reversed(block_ids):
            holders = self._holders.get(block_id, {})
            count = holders.get(holder, 0)
            if not count:
                raise ValueError(
                    f"`block_id` {block_id} has no references of {holder!r}, but of {list(holders)!r}; release a block "
                    "once for each `allocate` or `add_reference`."
                )
            if count > 1:
                holders[holder] = count - 1
                continue
            if len(holders) > 1:
                del holders[holder]
                continue
            del self._holders[block_id]
            if self._keeps_idle and block_id in self._hash_of:
                self._idle[block_id] = None
            else:
                self.uncache_block(block_id)
                self._allocator.free((block_id,))

    def cache_block(self, block_id: int, block_hash: bytes) -> None:
        """Let `find` return this referenced block, unless the block has a hash or another block has this one."""
        if block_hash not in self._block_of and block_id not in self._hash_of:
            self._hash_of[block_id] = block_hash
            self._block_of[block_hash] = block_id

    def uncache_block(self, block_id: int) -> None:
        """Remove the block's hash, if it has one; an idle block becomes free."""
        block_hash = self._hash_of.pop(block_id, None)
        if block_hash is not None:
            del self._block_of[block_hash]
        if block_id in self._idle:
            del self._idle[block_id]
            self._allocator.free((block_id,))

    def audit(self, reachable: Iterable[int]) -> list[int]:
        """Return the leaked blocks, ascending: allocated, but neither idle nor among the `reachable` ones."""
        return self._allocator.audit({*reachable, *self._idle})

    def reclaim(self, reachable: Iterable[int]) -> int:
        """Free the blocks that `audit(reachable)` finds, and return their number."""
        leaked = self.audit(reachable)
        for block_id in leaked:
            self._holders.pop(block_id, None)
            self.uncache_block(block_id)
        self._allocator.free(leaked)
        return len(leaked)
