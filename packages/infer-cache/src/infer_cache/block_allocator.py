"""Which block ids are free and who owns the others. Knows integers; knows no tokens, no sequences, no tensors."""

from collections.abc import Collection, Hashable, Iterable
from typing import Final

from infer_cache.free_extents import FreeExtents

_FREE: Final = object()


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
    apart, so that each has room to grow on.
    """

    __slots__ = ("_owners", "_runs")

    def __init__(self, num_blocks: int) -> None:
        """Start with all blocks free; a pool of no blocks is legal.

        Raises:
            ValueError: `num_blocks` is negative.
        """
        if num_blocks < 0:
            raise ValueError(f"`num_blocks` is {num_blocks}; it must be at least 0.")
        self._owners: list[Hashable] = [_FREE] * num_blocks
        self._runs = FreeExtents(num_blocks)

    @property
    def num_blocks(self) -> int:
        """Blocks, free or not."""
        return len(self._owners)

    @property
    def num_free(self) -> int:
        """Blocks that nobody owns."""
        return self._runs.num_free

    def can_allocate(self, count: int) -> bool:
        """Return whether `allocate(count)` would succeed."""
        return count <= self._runs.num_free

    def allocate(self, count: int, *, owner: Hashable, after: int | None = None) -> list[int]:
        """Give `count` blocks to `owner`.

        Args:
            count: how many; 0 gives an empty list.
            owner: whom `owner_of` names from then on.
            after: an allocated block that the given ones should follow, such as the last of the owner's; a wish, not a
                condition.

        Raises:
            OutOfBlocksError: fewer than `count` blocks are free; nothing has changed.
            ValueError: `count` is negative.
        """
        if count < 0:
            raise ValueError(f"`count` is {count}; it must be at least 0.")
        if count > self._runs.num_free:
            raise OutOfBlocksError(num_asked=count, num_free=self._runs.num_free, num_blocks=self.num_blocks)
        given: list[int] = []
        if after is not None:
            given += self._runs.take_at(after + 1, count)
        while len(given) < count:
            given += self._runs.take_from_longest(count - len(given))
        for block_id in given:
            self._owners[block_id] = owner
        return given

    def free(self, block_ids: Collection[int]) -> None:
        """Take back blocks, whoever owns them.

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
            self._owners[block_id] = _FREE
            self._runs.add(block_id)

    def owner_of(self, block_id: int) -> Hashable:
        """Return whom the block was given to.

        Raises:
            ValueError: the id is unknown or not allocated.
        """
        self._check_allocated(block_id)
        return self._owners[block_id]

    def blocks_of(self, owner: Hashable) -> list[int]:
        """Return the blocks that `owner` has, ascending. Reads the whole pool: for diagnosis."""
        return [block_id for block_id, holder in enumerate(self._owners) if holder is not _FREE and holder == owner]

    def audit(self, reachable: Iterable[int]) -> list[int]:
        """Return the leaked blocks: allocated, but not among the `reachable` ones; ascending. Reads the whole pool."""
        kept = set(reachable)
        return [
            block_id for block_id, holder in enumerate(self._owners) if holder is not _FREE and block_id not in kept
        ]

    def reclaim(self, reachable: Iterable[int]) -> int:
        """Free what `audit(reachable)` finds and return how many blocks that were."""
        leaked = self.audit(reachable)
        self.free(leaked)
        return len(leaked)

    def _check_allocated(self, block_id: int) -> None:
        if not 0 <= block_id < self.num_blocks:
            raise ValueError(f"`block_id` {block_id} is unknown; this pool has {self.num_blocks} blocks, from 0.")
        if self._owners[block_id] is _FREE:
            raise ValueError(f"`block_id` {block_id} is not allocated; free only what `allocate` gave, and once.")
