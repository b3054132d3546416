"""One group of layers' block tables: which blocks each sequence holds. Knows one window; knows no other group.

A table holds a stretch of its sequence's blocks: those that the window has left are given back, those that no token has
reached are still to come.

    blocks of the sequence   0  1  2 |3  4  5| 6  7         first = 3, blocks = the ids of 3, 4 and 5
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from infer_cache.block_map import BlockMap
from infer_cache.block_pool import BlockPool
from infer_cache.sliding_window import first_block_in_window, max_blocks_in_window


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupSpec:
    """A group of layers that attend alike.

    Attributes:
        num_blocks: blocks of the group's pool.
        window: the layers' sliding window in tokens; None keeps every block of a sequence.
    """

    num_blocks: int
    window: int | None = None


@dataclass(slots=True)
class BlockTable:
    """One sequence's blocks in one group.

    Attributes:
        first: which of the sequence's blocks `blocks[0]` is.
        blocks: ids of the blocks from there on.
        num_cached: blocks of the sequence, from its beginning, that have been offered their names.
    """

    first: int = 0
    blocks: list[int] = field(default_factory=list)
    num_cached: int = 0

    @property
    def end(self) -> int:
        """One past the last of the sequence's blocks that the table holds."""
        return self.first + len(self.blocks)


class GroupBlockTables:
    """The tables of all sequences in one group, over the group's own blocks."""

    __slots__ = ("_block_size", "_max_chunk", "_tables", "blocks", "window")

    def __init__(self, spec: GroupSpec, block_size: int, *, max_chunk: int | None, keeps_idle: bool) -> None:
        """Share out the group's blocks; `max_chunk` is the most tokens of a sequence that one step computes."""
        self.blocks = BlockPool(spec.num_blocks, keeps_idle=keeps_idle)
        self.window = spec.window
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
        return self.blocks.num_free * self._block_size

    def first_block_in_window(self, first_position: int) -> int:
        """Return the first block that tokens from `first_position` on attend to."""
        return first_block_in_window(first_position, window=self.window, block_size=self._block_size)

    def num_reserved(self, num_tokens: int, *, first: int) -> int:
        """Return one past the last block that a sequence of `num_tokens` tokens reserves from block `first` on."""
        whole = -(-num_tokens // self._block_size)
        most = max_blocks_in_window(
            num_tokens, window=self.window, max_chunk=self._max_chunk, block_size=self._block_size
        )
        return min(whole, first + most)

    def find(self, block_hashes: Sequence[bytes]) -> list[int | None]:
        """Return the block of each name, or None."""
        return [self.blocks.find(name) for name in block_hashes]

    def open(self, sequence_id: str, *, first: int, found: Sequence[int], end: int) -> BlockTable:
        """Start a sequence's table with the blocks `found`, from block `first` on, and others up to block `end`.

        Raises:
            OutOfBlocksError: not enough blocks are free; nothing has changed.
        """
        self.blocks.add_reference(found)
        try:
            added = self.blocks.allocate(
                max(0, end - first - len(found)), after=found[-1] if found else None
            )
        except BaseException:
            self.blocks.release(found)
            raise
        table = BlockTable(first=first, blocks=[*found, *added], num_cached=first + len(found))
        self._tables[sequence_id] = table
        return table

    def free_outside_window(self, sequence_id: str, first_position: int) -> None:
        """Give back the blocks that the window has left once tokens from `first_position` on are computed."""
        table = self._tables[sequence_id]
        num_left = min(self.first_block_in_window(first_position) - table.first, len(table.blocks))
        if num_left > 0:
            self.blocks.release(table.blocks[:num_left])
            del table.blocks[:num_left]
            table.first += num_left

    def num_missing(self, sequence_id: str, num_tokens: int) -> int:
        """Return how many more blocks a sequence needs for `num_tokens` tokens."""
        return max(0, -(-num_tokens // self._block_size) - self._tables[sequence_id].end)

    def grow(self, sequence_id: str, count: int) -> list[int]:
        """Add `count` blocks to a table and return them.

        Raises:
            OutOfBlocksError: not enough blocks are free; nothing has changed.
        """
        table = self._tables[sequence_id]
        added = self.blocks.allocate(count, after=table.blocks[-1] if table.blocks else None)
        table.blocks += added
        return added

    def shrink(self, sequence_id: str, count: int) -> None:
        """Take back the last `count` blocks of a table."""
        if count:
            table = self._tables[sequence_id]
            self.blocks.release(table.blocks[-count:])
            del table.blocks[-count:]

    def replace(self, sequence_id: str, index: int, block_id: int) -> None:
        """Hold `block_id` in place of the sequence's own block `index`, of which nothing is computed."""
        table = self._tables[sequence_id]
        self.blocks.add_reference((block_id,))
        self.blocks.release((table.blocks[index - table.first],))
        table.blocks[index - table.first] = block_id
        table.num_cached = max(table.num_cached, index + 1)

    def cache_blocks(self, sequence_id: str, block_hashes: Sequence[bytes], count: int) -> None:
        """Let the sequence's first `count` blocks be found by their names."""
        table = self._tables[sequence_id]
        for index in range(max(table.num_cached, table.first), count):
            self.blocks.cache_block(table.blocks[index - table.first], block_hashes[index])
        table.num_cached = max(table.num_cached, count)

    def uncache_blocks(self, sequence_id: str, count: int) -> None:
        """Take away the names of a sequence's blocks from block `count` on."""
        table = self._tables[sequence_id]
        for block_id in table.blocks[max(0, count - table.first) :]:
            self.blocks.uncache_block(block_id)
        table.num_cached = min(table.num_cached, count)

    def close(self, sequence_id: str) -> None:
        """Give back all blocks of a sequence and forget it; one that has no table is left alone."""
        table = self._tables.pop(sequence_id, None)
        if table is not None:
            self.blocks.release(table.blocks)

    def map_blocks(self, max_blocks: int) -> BlockMap:
        """Return who holds which blocks, those below `max_blocks`; by sequence all of them."""
        return BlockMap(
            num_blocks=self.blocks.num_blocks,
            holders=self.blocks.ref_counts(max_blocks),
            held_by={sequence_id: table.blocks.copy() for sequence_id, table in self._tables.items()},
        )

    def reachable(self) -> Iterator[int]:
        """Yield the blocks that sequences hold."""
        for table in self._tables.values():
            yield from table.blocks
