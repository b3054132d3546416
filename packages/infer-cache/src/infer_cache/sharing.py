"""Blocks that several sequences may hold, and that keep their content when nobody does. Knows ids, holders and names.

free ──allocate──> held by 1 <──hold, drop──> held by n
 ^                    │  drop of the last holder
 │                    v
 └──no name──────── named? ──> idle: still found by its name, first to be evicted the longer nobody held it
 └──────────────────evict───────┘
"""

from collections.abc import Hashable, Iterable, Sequence

from infer_cache.blocks import BlockAllocator, OutOfBlocksError


class SharedBlocks:
    """A pool's blocks with their holders and names. Idle blocks count as free.

    Attributes:
        num_evictions: idle blocks that were given to somebody else, since the start.
    """

    __slots__ = ("_allocator", "_block_of", "_holders", "_idle", "_keeps_idle", "_name_of", "num_evictions")

    def __init__(self, num_blocks: int, *, keeps_idle: bool) -> None:
        """Start with all blocks free. `keeps_idle`: named blocks that nobody holds are kept as long as memory lasts.

        Raises:
            ValueError: `num_blocks` is negative.
        """
        self._allocator = BlockAllocator(num_blocks)
        self._keeps_idle = keeps_idle
        self._holders: dict[int, int] = {}
        self._name_of: dict[int, bytes] = {}
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

    def is_held(self, block_id: int) -> bool:
        """Return whether a sequence holds the block."""
        return block_id in self._holders

    def holders(self, max_blocks: int) -> list[int]:
        """Return how many hold each block below `max_blocks`; -1 for an idle one, 0 for one that is free."""
        return [
            -1 if block_id in self._idle else self._holders.get(block_id, 0)
            for block_id in range(min(max_blocks, self.num_blocks))
        ]

    def find(self, name: bytes) -> int | None:
        """Return the block of this name, held or idle, or None."""
        return self._block_of.get(name)

    def allocate(self, count: int, *, owner: Hashable, after: int | None = None) -> list[int]:
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
            self.forget(block_id)
            self.num_evictions += 1
        given = self._allocator.allocate(count, owner=owner, after=after)
        for block_id in given:
            self._holders[block_id] = 1
        return given

    def hold(self, block_ids: Sequence[int]) -> None:
        """Add a holder to each of these blocks, which are held or idle.

        Raises:
            ValueError: one of them is free: what was found has been given up since. Nothing has changed.
        """
        for block_id in block_ids:
            if block_id not in self._holders and block_id not in self._idle:
                raise ValueError(
                    f"`block_id` {block_id} is free; hold what `find` returns before others are given out."
                )
        for block_id in block_ids:
            num_holders = self._holders.get(block_id, 0)
            if not num_holders:
                del self._idle[block_id]
            self._holders[block_id] = num_holders + 1

    def drop(self, block_ids: Sequence[int]) -> None:
        """Take a holder from each of these blocks, the last of them first: the ends of prefixes are evicted first.

        Raises:
            ValueError: nobody holds one of them.
        """
        for block_id in reversed(block_ids):
            num_holders = self._holders.get(block_id, 0)
            if not num_holders:
                raise ValueError(f"`block_id` {block_id} is held by nobody; drop only what was allocated or held.")
            if num_holders > 1:
                self._holders[block_id] = num_holders - 1
                continue
            del self._holders[block_id]
            if self._keeps_idle and block_id in self._name_of:
                self._idle[block_id] = None
            else:
                self.forget(block_id)
                self._allocator.free((block_id,))

    def name(self, block_id: int, name: bytes) -> None:
        """Let a held block be found by `name`, unless another has that name or this one has any."""
        if name not in self._block_of and block_id not in self._name_of:
            self._name_of[block_id] = name
            self._block_of[name] = block_id

    def forget(self, block_id: int) -> None:
        """Take away the block's name, if it has one; an idle block becomes free."""
        name = self._name_of.pop(block_id, None)
        if name is not None:
            del self._block_of[name]
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
            self._holders.pop(block_id, None)
            self.forget(block_id)
        self._allocator.free(leaked)
        return len(leaked)
