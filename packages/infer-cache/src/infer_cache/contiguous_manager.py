"""`ContiguousKVCacheManager`: the contiguous KV cache, a slot of consecutive blocks for each of a number of sequences.

    slot      0          1          2
    blocks    0  1  2  3 4  5  6  7 8  9  10 11      a sequence of up to 4 blocks takes one slot

It has the methods of `PagedKVCacheManager`. A sequence gets its whole slot at admission, and no block is ever cached.
"""

from collections.abc import Sequence

from infer_cache.block_allocator import BlockAllocator, OutOfBlocksError, UnknownSequenceError
from infer_cache.block_map import BlockMap
from infer_cache.leaks import LeakedBlock
from infer_cache.paged_manager import AdmissionBudget, PrefixHit, TableEdit
from infer_cache.states.sequence_states import NO_STATES, SequenceStates

_NO_HIT = PrefixHit(0, (0,), ((),), (0,))


class ContiguousKVCacheManager:
    """Slots of consecutive blocks, one for each sequence."""

    __slots__ = ("_block_size", "_blocks_per_slot", "_holder_of", "_slot_of", "_slots")

    def __init__(self, num_slots: int, blocks_per_slot: int, block_size: int) -> None:
        """Start with `num_slots` free slots of `blocks_per_slot` blocks of `block_size` tokens.

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
        self._holder_of: dict[int, str] = {}  # by slot, the sequence that it was last given to

    @property
    def block_size(self) -> int:
        """Tokens of a block."""
        return self._block_size

    @property
    def states(self) -> SequenceStates:
        """The states of sequences: none."""
        return NO_STATES

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
        """Always 0: the content of a free slot is not kept."""
        return 0

    @property
    def num_evictions(self) -> int:
        """Always 0."""
        return 0

    @property
    def usage(self) -> float:
        """Share of the slots that sequences have, in [0, 1]."""
        return 1 - self._slots.num_free / max(1, self._slots.num_blocks)

    def find(self, block_hashes: Sequence[bytes], num_tokens: int) -> PrefixHit:
        """Return a hit of no tokens."""
        del block_hashes, num_tokens
        return _NO_HIT

    def budget(self, reserve: float) -> AdmissionBudget:
        """Return the free slots; none is reserved, as no sequence grows beyond its slot."""
        del reserve
        return AdmissionBudget([self._slots.num_free])

    def costs(self, num_tokens: int, hit: PrefixHit) -> list[int]:
        """Return one slot."""
        del num_tokens, hit
        return [1]

    def fits(self, num_tokens: int, hit: PrefixHit) -> bool:
        """Return whether a slot is free and has room for `num_tokens` tokens."""
        del hit
        return self._slots.num_free > 0 and num_tokens <= self._blocks_per_slot * self._block_size

    def admit(self, sequence_id: str, num_tokens: int, hit: PrefixHit) -> list[TableEdit]:
        """Give a sequence a slot.

        Raises:
            OutOfBlocksError: no slot is free, or a slot has no room for `num_tokens` tokens.
            ValueError: the sequence has a slot already.
        """
        if self.holds(sequence_id):
            raise ValueError(f"`sequence_id` {sequence_id!r} has a slot already; `release` it first.")
        if not self.fits(num_tokens, hit):
            num_asked = -(-num_tokens // self._block_size)
            raise OutOfBlocksError(num_asked, self.num_free_blocks, self.num_blocks)
        (slot,) = self._slots.allocate(1)
        self._holder_of[slot] = sequence_id
        self._slot_of[sequence_id] = slot
        return [TableEdit(0, 0, list(self.blocks(sequence_id)))]

    def capacity(self, sequence_id: str) -> int:
        """Return how many tokens the sequence's slot has room for.

        Raises:
            UnknownSequenceError: the sequence has no slot.
        """
        self._slot(sequence_id)
        return self._blocks_per_slot * self._block_size

    def try_extend(self, sequence_id: str, num_tokens: int, *, first_position: int) -> list[TableEdit] | None:
        """Return no edits, or None where the slot has no room for `num_tokens` tokens.

        Raises:
            UnknownSequenceError: the sequence has no slot.
        """
        del first_position
        return [] if num_tokens <= self.capacity(sequence_id) else None

    def reuse_blocks(self, sequence_id: str, block_hashes: Sequence[bytes], num_computed: int) -> list[TableEdit]:
        """Return no edits."""
        del sequence_id, block_hashes, num_computed
        return []

    def cache_blocks(self, sequence_id: str, block_hashes: Sequence[bytes], num_tokens: int) -> None:
        """Do nothing."""

    def uncache_blocks(self, sequence_id: str, num_tokens: int) -> None:
        """Do nothing."""

    def uncache_hashes(self, block_hashes: Sequence[bytes]) -> None:
        """Do nothing."""

    def release(self, sequence_id: str) -> None:
        """Free a sequence's slot.

        Raises:
            UnknownSequenceError: the sequence has no slot.
        """
        self._slots.free((self._slot(sequence_id),))
        del self._slot_of[sequence_id]

    def holds(self, sequence_id: str) -> bool:
        """Return whether the sequence has a slot."""
        return sequence_id in self._slot_of

    def blocks(self, sequence_id: str, group: int = 0) -> tuple[int, ...]:
        """Return the ids of the blocks of a sequence's slot, in order; there is one group.

        Raises:
            UnknownSequenceError: the sequence has no slot.
        """
        del group
        first = self._slot(sequence_id) * self._blocks_per_slot
        return tuple(range(first, first + self._blocks_per_slot))

    def map_blocks(self, max_blocks: int) -> BlockMap:
        """Return a map of all slots, with the reference counts of blocks below `max_blocks`."""
        block_tables = {sequence_id: list(self.blocks(sequence_id)) for sequence_id in self._slot_of}
        ref_counts = [0] * self.num_blocks
        for block_ids in block_tables.values():
            ref_counts[block_ids[0] : block_ids[-1] + 1] = [1] * len(block_ids)
        return BlockMap(num_blocks=self.num_blocks, ref_counts=ref_counts[:max_blocks], block_tables=block_tables)

    def audit(self) -> list[LeakedBlock]:
        """Return the blocks of leaked slots: allocated, but of no sequence."""
        return [
            LeakedBlock(0, slot * self._blocks_per_slot + index, (self._holder_of.get(slot),))
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
