"""The contiguous cache: a fixed run of consecutive blocks for each of a fixed number of sequences. Knows integers.

    slot      0          1          2
    blocks    0  1  2  3 4  5  6  7 8  9  10 11      a sequence of up to 4 blocks takes one slot

It has the methods of `PagedKVCacheManager`. A sequence gets its whole slot at admission, and prefixes are never cached.
"""

from collections.abc import Sequence

from infer_cache.block_allocator import BlockAllocator, OutOfBlocksError
from infer_cache.block_map import BlockMap
from infer_cache.paged_manager import AdmissionBudget, PrefixHit, TableEdit, UnknownSequenceError

_NOTHING_FOUND = PrefixHit(0, (0,), ((),), (0,))


class ContiguousKVCacheManager:
    """Block tables that are slots."""

    __slots__ = ("_block_size", "_blocks_per_slot", "_slot_of", "_slots")

    def __init__(self, num_slots: int, blocks_per_slot: int, block_size: int) -> None:
        """Give `num_slots` sequences `blocks_per_slot` blocks of `block_size` tokens each.

        Raises:
            ValueError: `num_slots` is negative, or one of the others is not positive.
        """
        if num_slots < 0:
            raise ValueError(f"`num_slots` is {num_slots}; it must be at least 0.")
        for name, size in (("blocks_per_slot", blocks_per_slot), ("block_size", block_size)):
            if size < 1:
                raise ValueError(f"`{name}` is {size}; it must be at least 1.")
        self._slots = BlockAllocator(num_slots)
        self._blocks_per_slot = blocks_per_slot
        self._block_size = block_size
        self._slot_of: dict[str, int] = {}

    @property
    def block_size(self) -> int:
        """Tokens of a block."""
        return self._block_size

    @property
    def num_blocks(self) -> int:
        """Blocks, free or not."""
        return self._slots.num_blocks * self._blocks_per_slot

    @property
    def num_free_blocks(self) -> int:
        """Blocks of free slots."""
        return self._slots.num_free * self._blocks_per_slot

    @property
    def num_idle_blocks(self) -> int:
        """Always 0: what a free slot holds is not kept."""
        return 0

    @property
    def num_evictions(self) -> int:
        """Always 0."""
        return 0

    @property
    def num_free_tokens(self) -> int:
        """Tokens that the free slots have room for."""
        return self.num_free_blocks * self._block_size

    @property
    def usage(self) -> float:
        """Share of the slots that sequences hold, in [0, 1]."""
        return 1 - self._slots.num_free / max(1, self._slots.num_blocks)

    def find(self, block_hashes: Sequence[bytes], num_tokens: int) -> PrefixHit:
        """Find nothing."""
        del block_hashes, num_tokens
        return _NOTHING_FOUND

    def budget(self, reserve: float) -> AdmissionBudget:
        """Return the free slots: nothing is reserved, as no sequence grows beyond its slot."""
        del reserve
        return AdmissionBudget([self._slots.num_free])

    def costs(self, num_tokens: int, hit: PrefixHit) -> list[int]:
        """Return one slot."""
        del num_tokens, hit
        return [1]

    def fits(self, num_tokens: int, hit: PrefixHit) -> bool:
        """Return whether a slot is free that holds `num_tokens` tokens."""
        del hit
        return self._slots.num_free > 0 and num_tokens <= self._blocks_per_slot * self._block_size

    def admit(self, sequence_id: str, num_tokens: int, hit: PrefixHit) -> list[TableEdit]:
        """Give a sequence a slot.

        Raises:
            OutOfBlocksError: no slot is free, or none holds as many tokens.
            ValueError: the sequence has a slot already.
        """
        if self.holds(sequence_id):
            raise ValueError(f"`sequence_id` {sequence_id!r} has a slot already; `release` it first.")
        if not self.fits(num_tokens, hit):
            needed = -(-num_tokens // self._block_size)
            raise OutOfBlocksError(num_asked=needed, num_free=self.num_free_blocks, num_blocks=self.num_blocks)
        (slot,) = self._slots.allocate(1)
        self._slot_of[sequence_id] = slot
        return [TableEdit(0, 0, list(self.blocks(sequence_id)))]

    def capacity(self, sequence_id: str) -> int:
        """Return how many tokens a slot has room for.

        Raises:
            UnknownSequenceError: the sequence has no slot.
        """
        self._slot(sequence_id)
        return self._blocks_per_slot * self._block_size

    def try_extend(self, sequence_id: str, num_tokens: int, *, first_position: int) -> list[TableEdit] | None:
        """Return no edits, or None where `num_tokens` exceed the slot.

        Raises:
            UnknownSequenceError: the sequence has no slot.
        """
        del first_position
        return [] if num_tokens <= self.capacity(sequence_id) else None

    def reuse_blocks(self, sequence_id: str, block_hashes: Sequence[bytes], num_computed: int) -> list[TableEdit]:
        """Take nothing from others."""
        del sequence_id, block_hashes, num_computed
        return []

    def cache_blocks(self, sequence_id: str, block_hashes: Sequence[bytes], num_tokens: int) -> None:
        """Keep no names."""

    def uncache_blocks(self, sequence_id: str, num_tokens: int) -> None:
        """Keep no names."""

    def uncache_hashes(self, block_hashes: Sequence[bytes]) -> None:
        """Keep no names."""

    def release(self, sequence_id: str) -> None:
        """Give back a sequence's slot.

        Raises:
            UnknownSequenceError: the sequence has no slot.
        """
        self._slots.free((self._slot(sequence_id),))
        del self._slot_of[sequence_id]

    def holds(self, sequence_id: str) -> bool:
        """Return whether the sequence has a slot."""
        return sequence_id in self._slot_of

    def blocks(self, sequence_id: str, group: int = 0) -> tuple[int, ...]:
        """Return the blocks of a sequence's slot, in order; there is one group.

        Raises:
            UnknownSequenceError: the sequence has no slot.
        """
        del group
        first = self._slot(sequence_id) * self._blocks_per_slot
        return tuple(range(first, first + self._blocks_per_slot))

    def map_blocks(self, max_blocks: int) -> BlockMap:
        """Return who holds which blocks, those below `max_blocks`: a slot's blocks have one holder. For people."""
        held_by = {sequence_id: list(self.blocks(sequence_id)) for sequence_id in self._slot_of}
        holders = [0] * self.num_blocks
        for block_ids in held_by.values():
            holders[block_ids[0] : block_ids[-1] + 1] = [1] * len(block_ids)
        return BlockMap(num_blocks=self.num_blocks, holders=holders[:max_blocks], held_by=held_by)

    def audit(self) -> list[tuple[int, int]]:
        """Return the blocks of leaked slots as (0, id): allocated, but no sequence's."""
        return [
            (0, slot * self._blocks_per_slot + index)
            for slot in self._slots.audit(self._slot_of.values())
            for index in range(self._blocks_per_slot)
        ]

    def reclaim(self) -> int:
        """Free the slots that `audit` finds and return how many blocks they have."""
        return self._slots.reclaim(self._slot_of.values()) * self._blocks_per_slot

    def _slot(self, sequence_id: str) -> int:
        try:
            return self._slot_of[sequence_id]
        except KeyError:
            raise UnknownSequenceError(sequence_id) from None
