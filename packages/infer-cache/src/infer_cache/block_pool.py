"""Blocks that several sequences may hold, and that keep their content when nobody does. Knows ids, holders and names.

free ──allocate──> held by 1 <──hold, drop──> held by n
 ^                    │  drop of the last holder
 │                    v
 └──no name──────── named? ──> idle: still found by its name, first to be evicted the longer nobody held it
 └──────────────────evict───────┘
"""

from collections.abc import Iterable, Sequence

from infer_cache.block_allocator import BlockAllocator, OutOfBlocksError


class BlockPool:
    """A pool's blocks with their holders and names. Idle blocks count as free.

    Attributes:
        num_evictions: idle blocks that were given to somebody else, since the start.
    """

    __slots__ = ("_allocator", "_block_of", "_hash_of", "_idle", "_keeps_idle", "_ref_counts", "num_evictions")

    def __init__(self, num_blocks: int, *, keeps_idle: bool) -> None:
        """Start with all blocks free. `keeps_idle`: named blocks that nobody holds are kept as long as memory lasts.

        Raises:
            ValueError: `num_blocks` is negative.
        """
        self._allocator = BlockAllocator(num_blocks)
        self._keeps_idle = keeps_idle
        self._ref_counts: dict[int, int] = {}
        self._hash_of: dict[int, bytes] = {}
        self._block_of: dict[bytes, int] = {}
        self._idle: dict[int, None] = {}  # in the order in which they became idle
        self.num_evictions = 0

    @property
    def allocator(self) -> BlockAllocator:
        """The allocator beneath; a block's owner is who allocated it."""
        return self._allocator

    @property
    def num_blocks(self) -> int:
        """Blocks, free or not."""
        return self._allocator.num_blocks

    @property
    def num_free(self) -> int:
        """Blocks that nobody holds, idle ones included."""
        return self._allocator.num_free + len(self._idle)

    @property
    def num_idle(self) -> int:
        """Blocks that nobody holds, but that can still be found."""
        return len(self._idle)

    def is_referenced(self, block_id: int) -> bool:
        """Return whether a sequence holds the block."""
        return block_id in self._ref_counts

    def ref_counts(self, max_blocks: int) -> list[int]:
        """Return how many hold each block below `max_blocks`; -1 for an idle one, 0 for one that is free."""
        return [
            -1 if block_id in self._idle else self._ref_counts.get(block_id, 0)
            for block_id in range(min(max_blocks, self.num_blocks))
        ]

    def find(self, name: bytes) -> int | None:
        """Return the block of this name, held or idle, or None."""
        return self._block_of.get(name)

    def allocate(self, count: int, *, after: int | None = None) -> list[int]:
        """Give `count` blocks without names to one holder; arguments as for `BlockAllocator.allocate`.

        Idle blocks are evicted where too few are free, those first that were idle longest.

        Raises:
            OutOfBlocksError: fewer than `count` blocks are free or idle; nothing has changed.
        """
        num_missing = count - self._allocator.num_free
        if num_missing > len(self._idle):
            raise OutOfBlocksError(num_asked=count, num_free=self.num_free, num_blocks=self.num_blocks)
        for _ in range(num_missing):
            block_id = next(iter(self._idle))
            self.uncache_block(block_id)
            self.num_evictions += 1
        given = self._allocator.allocate(count, after=after)
        for block_id in given:
            self._ref_counts[block_id] = 1
        return given

    def add_reference(self, block_ids: Sequence[int]) -> None:
        """Add a holder to each of these blocks, which are held or idle.

        Raises:
            ValueError: one of them is free: what was found has been given up since. Nothing has changed.
        """
        for block_id in block_ids:
            if block_id not in self._ref_counts and block_id not in self._idle:
                raise ValueError(
                    f"`block_id` {block_id} is free; hold what `find` returns before others are given out."
                )
        for block_id in block_ids:
            ref_count = self._ref_counts.get(block_id, 0)
            if not ref_count:
                del self._idle[block_id]
            self._ref_counts[block_id] = ref_count + 1

    def release(self, block_ids: Sequence[int]) -> None:
        """Take a holder from each of these blocks, the last of them first: the ends of prefixes are evicted first.

        Raises:
            ValueError: nobody holds one of them.
        """
        for block_id in reversed(block_ids):
            ref_count = self._ref_counts.get(block_id, 0)
            if not ref_count:
                raise ValueError(f"`block_id` {block_id} is held by nobody; drop only what was allocated or held.")
            if ref_count > 1:
                self._ref_counts[block_id] = ref_count - 1
                continue
            del self._ref_counts[block_id]
            if self._keeps_idle and block_id in self._hash_of:
                self._idle[block_id] = None
            else:
                self.uncache_block(block_id)
                self._allocator.free((block_id,))

    def cache_block(self, block_id: int, block_hash: bytes) -> None:
        """Let `find` return this referenced block, unless the hash is taken or the block has one already."""
        if block_hash not in self._block_of and block_id not in self._hash_of:
            self._hash_of[block_id] = block_hash
            self._block_of[block_hash] = block_id

    def uncache_block(self, block_id: int) -> None:
        """Take away the block's hash, if it has one; an idle block becomes free."""
        block_hash = self._hash_of.pop(block_id, None)
        if block_hash is not None:
            del self._block_of[block_hash]
        if block_id in self._idle:
            del self._idle[block_id]
            self._allocator.free((block_id,))

    def audit(self, reachable: Iterable[int]) -> list[int]:
        """Return the leaked blocks: allocated, but neither idle nor among the `reachable` ones; ascending."""
        return self._allocator.audit({*reachable, *self._idle})

    def reclaim(self, reachable: Iterable[int]) -> int:
        """Free what `audit(reachable)` finds and return how many blocks that were."""
        leaked = self.audit(reachable)
        for block_id in leaked:
            self._ref_counts.pop(block_id, None)
            self.uncache_block(block_id)
        self._allocator.free(leaked)
        return len(leaked)
