"""Which blocks each sequence holds. Knows sequences, tokens and block ids; knows no tensors and no schedule."""

from infer_cache.blocks import BlockAllocator


class UnknownSequenceError(KeyError):
    """A sequence that holds no table was named."""

    def __init__(self, sequence_id: str) -> None:
        """Say which one."""
        super().__init__(sequence_id)
        self.sequence_id = sequence_id

    def __str__(self) -> str:
        """Return the message; a `KeyError` would show the bare key."""
        return (
            f"`sequence_id` {self.sequence_id!r} holds no blocks; `reserve` some for it first, and `release` it once."
        )


class BlockTables:
    """The block table of every sequence: entry i holds its tokens `i * block_size` to `(i + 1) * block_size - 1`."""

    __slots__ = ("_allocator", "_block_size", "_tables")

    def __init__(self, num_blocks: int, block_size: int) -> None:
        """Share out `num_blocks` blocks of `block_size` tokens each; no blocks at all is legal.

        Raises:
            ValueError: `num_blocks` is negative or `block_size` is not positive.
        """
        if block_size < 1:
            raise ValueError(f"`block_size` is {block_size}; it must be at least 1.")
        self._allocator = BlockAllocator(num_blocks)
        self._block_size = block_size
        self._tables: dict[str, list[int]] = {}

    @property
    def allocator(self) -> BlockAllocator:
        """The allocator beneath; its owners are sequence ids."""
        return self._allocator

    @property
    def num_blocks(self) -> int:
        """Blocks, free or not."""
        return self._allocator.num_blocks

    @property
    def block_size(self) -> int:
        """Tokens of a block."""
        return self._block_size

    @property
    def num_free_blocks(self) -> int:
        """Blocks that no sequence holds."""
        return self._allocator.num_free

    @property
    def num_free_tokens(self) -> int:
        """Tokens that the free blocks have room for."""
        return self._allocator.num_free * self._block_size

    @property
    def num_sequences(self) -> int:
        """Sequences that have a table."""
        return len(self._tables)

    def blocks_for(self, num_tokens: int) -> int:
        """Return how many blocks a sequence of `num_tokens` tokens takes."""
        return -(-num_tokens // self._block_size)

    def can_reserve(self, sequence_id: str, num_tokens: int) -> bool:
        """Return whether `reserve` would succeed; the sequence may be unknown."""
        num_held = len(self._tables.get(sequence_id, ()))
        return num_tokens <= (num_held + self._allocator.num_free) * self._block_size

    def reserve(self, sequence_id: str, num_tokens: int) -> list[int]:
        """Make sure that a sequence holds blocks for `num_tokens` tokens in total; return the blocks this added.

        An unknown sequence gets a table, even for 0 tokens. The sequence never loses blocks by this.

        Raises:
            OutOfBlocksError: not enough blocks are free; nothing has changed.
        """
        table = self._tables.get(sequence_id)
        if table is None:
            table = self._allocator.allocate(self.blocks_for(num_tokens), owner=sequence_id)
            self._tables[sequence_id] = table
            return table.copy()
        if num_tokens <= len(table) * self._block_size:
            return []
        added = self._allocator.allocate(
            self.blocks_for(num_tokens) - len(table), owner=sequence_id, after=table[-1] if table else None
        )
        table += added
        return added

    def release(self, sequence_id: str) -> None:
        """Free a sequence's blocks and forget it.

        Raises:
            UnknownSequenceError: the sequence has no table.
        """
        self._allocator.free(self._table(sequence_id))
        del self._tables[sequence_id]

    def blocks(self, sequence_id: str) -> tuple[int, ...]:
        """Return a sequence's block table.

        Raises:
            UnknownSequenceError: the sequence has no table.
        """
        return tuple(self._table(sequence_id))

    def audit(self) -> list[int]:
        """Return the blocks that are allocated but in no sequence's table, ascending. Reads the whole pool."""
        return self._allocator.audit(self._reachable())

    def reclaim(self) -> int:
        """Free the blocks that `audit` finds and return how many they were."""
        return self._allocator.reclaim(self._reachable())

    def _reachable(self) -> set[int]:
        return {block_id for table in self._tables.values() for block_id in table}

    def _table(self, sequence_id: str) -> list[int]:
        try:
            return self._tables[sequence_id]
        except KeyError:
            raise UnknownSequenceError(sequence_id) from None
