"""`BlockAllocator`: which block ids are allocated and which are free."""

from collections.abc import Collection, Iterable

from infer_cache.free_extents import FreeExtents


class OutOfBlocksError(RuntimeError):
    """More blocks were asked for than are free; nothing has changed."""

    def __init__(self, num_asked: int, num_free: int, num_blocks: int) -> None:
        """Say how many blocks were asked for, and how many of the pool's `num_blocks` are free."""
        super().__init__(num_asked, num_free, num_blocks)

    def __str__(self) -> str:
        """Return the message."""
        num_asked, num_free, num_blocks = self.args
        return (
            f"`allocate` was asked for {num_asked} blocks but {num_free} of {num_blocks} are free; free some first, or "
            "raise `num_kv_blocks`."
        )


class UnknownSequenceError(KeyError):
    """A sequence was named that has no blocks."""

    def __init__(self, sequence_id: str) -> None:
        """Make the error of the sequence `sequence_id`."""
        super().__init__(sequence_id)
        self.sequence_id = sequence_id

    def __str__(self) -> str:
        """Return the message; a `KeyError` would show the bare key."""
        return f"`sequence_id` {self.sequence_id!r} has no blocks; `admit` it first, and `release` it once."


class BlockAllocator:
    """Allocates and frees the ids 0 to `num_blocks - 1`, all-or-nothing, in O(1) per block.

    Ids that are allocated together are consecutive wherever the free ids allow it. Separate allocations are placed
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
        """Allocate `count` blocks and return their ids.

        Args:
            count: number of blocks; 0 gives an empty list.
            after: a block that the allocated ones should follow if possible, such as the last one of a sequence.

        Raises:
            OutOfBlocksError: fewer than `count` blocks are free; nothing has changed.
            ValueError: `count` is negative.
        """
        if count < 0:
            raise ValueError(f"`count` is {count}; it must be at least 0.")
        if count > self.num_free:
            raise OutOfBlocksError(count, self.num_free, self.num_blocks)
        block_ids: list[int] = []
        if after is not None:
            block_ids += self._free.take_at(after + 1, count)
        while len(block_ids) < count:
            block_ids += self._free.take_from_longest(count - len(block_ids))
        for block_id in block_ids:
            self._is_allocated[block_id] = True
        return block_ids

    def free(self, block_ids: Collection[int]) -> None:
        """Free allocated blocks.

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
        """Return the leaked blocks, ascending: allocated, but not among the `reachable` ones. Reads the whole pool."""
        kept = set(reachable)
        return [
            block_id
            for block_id, is_allocated in enumerate(self._is_allocated)
            if is_allocated and block_id not in kept
        ]

    def reclaim(self, reachable: Iterable[int]) -> int:
        """Free the blocks that `audit(reachable)` finds, and return their number."""
        leaked = self.audit(reachable)
        self.free(leaked)
        return len(leaked)

    def _check_allocated(self, block_id: int) -> None:
        if not 0 <= block_id < self.num_blocks:
            raise ValueError(f"`block_id` {block_id} is unknown; this pool has {self.num_blocks} blocks, from 0.")
        if not self._is_allocated[block_id]:
            raise ValueError(f"`block_id` {block_id} is not allocated; free each block once after `allocate` gave it.")
