"""Allocates block ids: integers, whatever the blocks hold."""

from collections.abc import Collection, Iterable

from infer_cache.free_extents import FreeExtents


class OutOfBlocksError(RuntimeError):
    """More blocks were asked for than are free; nothing has changed.

    Attributes:
        num_asked: blocks asked for.
        num_free: blocks that were free.
    """

    def __init__(self, *, num_asked: int, num_free: int, num_blocks: int) -> None:
        """Say what was asked of which pool."""
        super().__init__(
            f"`allocate` was asked for {num_asked} blocks but {num_free} of {num_blocks} are free; free some first, or "
            "raise `num_kv_blocks`."
        )
        self.num_asked = num_asked
        self.num_free = num_free


class BlockAllocator:
    """Gives out the ids 0 to `num_blocks - 1` and takes them back, all-or-nothing, in O(1) per block.

    Ids that are given together are consecutive wherever the free ids allow it, and unrelated allocations are placed
    apart, so that each can grow into consecutive ids.
    """

    __slots__ = ("_free", "_is_allocated")

    def __init__(self, num_blocks: int) -> None:
        """Start with all blocks free; a pool of no blocks is legal.

        Raises:
            ValueError: `num_blocks` is negative.
        """
        if num_blocks < 0:
            raise ValueError(f"`num_blocks` is {num_blocks}; it must be at least 0.")
        self._is_allocated = bytearray(num_blocks)
        self._free = FreeExtents(num_blocks)

    @property
    def num_blocks(self) -> int:
        """Blocks, free or not."""
        return len(self._is_allocated)

    @property
    def num_free(self) -> int:
        """Blocks that are not allocated."""
        return self._free.num_free

    def allocate(self, count: int, *, after: int | None = None) -> list[int]:
        """Give `count` blocks.

        Args:
            count: how many; 0 gives an empty list.
            after: an allocated block that the given ones should follow if possible, such as the last of a sequence.

        Raises:
            OutOfBlocksError: fewer than `count` blocks are free; nothing has changed.
            ValueError: `count` is negative.
        """
        if count < 0:
            raise ValueError(f"`count` is {count}; it must be at least 0.")
        if count > self._free.num_free:
            raise OutOfBlocksError(num_asked=count, num_free=self._free.num_free, num_blocks=self.num_blocks)
        given: list[int] = []
        if after is not None:
            given += self._free.take_at(after + 1, count)
        while len(given) < count:
            given += self._free.take_from_longest(count - len(given))
        for block_id in given:
            self._is_allocated[block_id] = True
        return given

    def free(self, block_ids: Collection[int]) -> None:
        """Take back allocated blocks.

        Raises:
            ValueError: an id is unknown, is not allocated, or appears twice; nothing has changed.
        """
        seen: set[int] = set()
        for block_id in block_ids:
            if block_id in seen:
                raise ValueError(f"`block_ids` has block {block_id} twice; a block can be freed once.")
            self._check_allocated(block_id)
            seen.add(block_id)
        for block_id in block_ids:
            self._is_allocated[block_id] = False
            self._free.add(block_id)

    def audit(self, reachable: Iterable[int]) -> list[int]:
        """Return the leaked blocks: allocated, but not among the `reachable` ones; ascending. Reads the whole pool."""
        kept = set(reachable)
        return [
            block_id
            for block_id, is_allocated in enumerate(self._is_allocated)
            if is_allocated and block_id not in kept
        ]

    def reclaim(self, reachable: Iterable[int]) -> int:
        """Free what `audit(reachable)` finds and return how many blocks that were."""
        leaked = self.audit(reachable)
        self.free(leaked)
        return len(leaked)

    def _check_allocated(self, block_id: int) -> None:
        if not 0 <= block_id < self.num_blocks:
            raise ValueError(f"`block_id` {block_id} is unknown; this pool has {self.num_blocks} blocks, from 0.")
        if not self._is_allocated[block_id]:
            raise ValueError(f"`block_id` {block_id} is not allocated; free only what `allocate` gave, and once.")
