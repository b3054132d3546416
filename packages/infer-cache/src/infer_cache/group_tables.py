"""The block tables of one group of layers.

A table has a range of its sequence's blocks: blocks that the window has left are freed, later ones are not yet
allocated.

    blocks of the sequence   0  1  2 |3  4  5| 6  7         first_block = 3, block_ids = the ids of 3, 4 and 5
                               freed            later
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from infer_cache.block_map import BlockMap
from infer_cache.block_pool import BlockPool
from infer_cache.sliding_window import first_block_in_window, max_blocks_in_window


@dataclass(slots=True)
class BlockTable:
    """One sequence's blocks in one group.

    Attributes:
        first_block: index, among the sequence's blocks, of `block_ids[0]`.
        block_ids: ids of the blocks from there on.
        num_cached: blocks of the sequence, from its beginning, that have been cached under their hashes.
    """

    first_block: int = 0
    block_ids: list[int] = field(default_factory=list)
    num_cached: int = 0

    @property
    def end(self) -> int:
        """One past the last of the sequence's blocks that the table has."""
        return self.first_block + len(self.block_ids)


class GroupBlockTables:
    """The block tables of all sequences in one group, over the group's own pool of blocks."""

    __slots__ = ("_block_size", "_max_chunk", "_tables", "block_pool", "window")

    def __init__(
        self, num_blocks: int, block_size: int, *, window: int | None, max_chunk: int | None, keeps_idle: bool
    ) -> None:
        """Start with no tables and `num_blocks` free blocks of `block_size` tokens.

        Args:
            num_blocks: blocks of the group.
            block_size: tokens of a block.
            window: sliding window of the group's layers, in tokens; None keeps all blocks of a sequence.
            max_chunk: most tokens of a sequence that one step computes; None: all of them.
            keeps_idle: keep cached blocks without references until they are evicted.
        """
        self.block_pool = BlockPool(num_blocks, keeps_idle=keeps_idle)
        self.window = window
        self._block_size = block_size
        self._max_chunk = max_chunk
        self._tables: dict[str, BlockTable] = {}

    def __getitem__(self, sequence_id: str) -> BlockTable:
        """Return a sequence's table; KeyError where it has none."""
        return self._tables[sequence_id]

    def __contains__(self, sequence_id: str) -> bool:
        """Return whether a sequence has a table."""
        return sequence_id in self._tables

    @property
    def num_free_tokens(self) -> int:
        """Tokens that the free blocks have room for."""
        return self.block_pool.num_free * self._block_size

    def first_block_in_window(self, first_position: int) -> int:
        """Return the first block that tokens from `first_position` on attend to."""
        return first_block_in_window(first_position, window=self.window, block_size=self._block_size)

    def reserved_end(self, num_tokens: int, *, first_block: int) -> int:
        """Return one past the last block that admitting `num_tokens` tokens reserves, from `first_block` on."""
        num_blocks = -(-num_tokens // self._block_size)
        most = max_blocks_in_window(
            num_tokens, window=self.window, max_chunk=self._max_chunk, block_size=self._block_size
        )
        return min(num_blocks, first_block + most)

    def find(self, block_hashes: Sequence[bytes]) -> list[int | None]:
        """Return the block that is cached under each hash, or None."""
        return [self.block_pool.find(block_hash) for block_hash in block_hashes]

    def open(self, sequence_id: str, *, first_block: int, found: Sequence[int], end: int) -> BlockTable:
        """Start a sequence's table with the blocks `found` from `first_block` on, and allocate others up to `end`.

        Raises:
            OutOfBlocksError: not enough blocks are free; nothing has changed.
        """
        self.block_pool.add_reference(found, holder=sequence_id)
        try:
            added = self.block_pool.allocate(
                max(0, end - first_block - len(found)), after=found[-1] if found else None, holder=sequence_id
            )
        except BaseException:
            self.block_pool.release(found, holder=sequence_id)
            raise
        table = BlockTable(first_block=first_block, block_ids=[*found, *added], num_cached=first_block + len(found))
        self._tables[sequence_id] = table
        return table

    def free_outside_window(self, sequence_id: str, first_position: int) -> None:
        """Release the blocks that tokens from `first_position` on do not attend to."""
        table = self._tables[sequence_id]
        count = min(self.first_block_in_window(first_position) - table.first_block, len(table.block_ids))
        if count > 0:
            self.block_pool.release(table.block_ids[:count], holder=sequence_id)
            del table.block_ids[:count]
            table.first_block += count

    def num_missing(self, sequence_id: str, num_tokens: int) -> int:
        """Return how many more blocks a sequence needs for `num_tokens` tokens."""
        return max(0, -(-num_tokens // self._block_size) - self._tables[sequence_id].end)

    def grow(self, sequence_id: str, count: int) -> list[int]:
        """Add `count` blocks to a table and return them.

        Raises:
            OutOfBlocksError: not enough blocks are free; nothing has changed.
        """
        table = self._tables[sequence_id]
        last = table.block_ids[-1] if table.block_ids else None
        added = self.block_pool.allocate(count, after=last, holder=sequence_id)
        table.block_ids += added
        return added

    def shrink(self, sequence_id: str, count: int) -> None:
        """Release the last `count` blocks of a table, at least one."""
        table = self._tables[sequence_id]
        self.block_pool.release(table.block_ids[-count:], holder=sequence_id)
        del table.block_ids[-count:]

    def replace(self, sequence_id: str, index: int, block_id: int) -> None:
        """Put the cached block `block_id` in place of the sequence's block `index`, of which nothing is computed."""
        table = self._tables[sequence_id]
        self.block_pool.add_reference((block_id,), holder=sequence_id)
        self.block_pool.release((table.block_ids[index - table.first_block],), holder=sequence_id)
        table.block_ids[index - table.first_block] = block_id
        table.num_cached = max(table.num_cached, index + 1)

    def cache_blocks(self, sequence_id: str, block_hashes: Sequence[bytes], count: int) -> None:
        """Cache the sequence's first `count` blocks under their hashes."""
        table = self._tables[sequence_id]
        for index in range(max(table.num_cached, table.first_block), count):
            self.block_pool.cache_block(table.block_ids[index - table.first_block], block_hashes[index])
        table.num_cached = max(table.num_cached, count)

    def uncache_blocks(self, sequence_id: str, count: int) -> None:
        """Remove the hashes of a sequence's blocks from block `count` on."""
        table = self._tables[sequence_id]
        for block_id in table.block_ids[max(0, count - table.first_block) :]:
            self.block_pool.uncache_block(block_id)
        table.num_cached = min(table.num_cached, count)

    def close(self, sequence_id: str) -> None:
        """Release all blocks of a sequence and remove its table, if it has one."""
        table = self._tables.pop(sequence_id, None)
        if table is not None:
            self.block_pool.release(table.block_ids, holder=sequence_id)

    def map_blocks(self, max_blocks: int) -> BlockMap:
        """Return all block tables, and the reference counts of the blocks below `max_blocks`."""
        return BlockMap(
            num_blocks=self.block_pool.num_blocks,
            ref_counts=self.block_pool.ref_counts(max_blocks),
            block_tables={sequence_id: table.block_ids.copy() for sequence_id, table in self._tables.items()},
        )

    def reachable(self) -> Iterator[int]:
        """Yield the blocks of all tables."""
        for table in self._tables.values():
            yield from table.block_ids
