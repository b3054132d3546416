"""No interleaving of calls loses a slot or gives it twice: `ContiguousKVCacheManager` against a plain dictionary."""

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from infer_cache import ContiguousKVCacheManager, OutOfBlocksError, UnknownSequenceError

SEQUENCES = st.sampled_from("abcd")


class SlotMachine(RuleBasedStateMachine):
    """The model is the blocks of each sequence."""

    @initialize(num_slots=st.integers(0, 3), blocks_per_slot=st.integers(1, 4), block_size=st.integers(1, 4))
    def start(self, num_slots: int, blocks_per_slot: int, block_size: int) -> None:
        self.manager = ContiguousKVCacheManager(num_slots, blocks_per_slot, block_size)
        self.num_slots, self.num_tokens = num_slots, blocks_per_slot * block_size
        self.block_tables: dict[str, list[int]] = {}

    @rule(sequence_id=SEQUENCES, num_tokens=st.integers(1, 18))
    def admit(self, sequence_id: str, num_tokens: int) -> None:
        if sequence_id in self.block_tables:
            return
        hit = self.manager.find([], num_tokens)
        fits = len(self.block_tables) < self.num_slots and num_tokens <= self.num_tokens
        assert self.manager.fits(num_tokens, hit) is fits
        try:
            (edit,) = self.manager.admit(sequence_id, num_tokens, hit)
        except OutOfBlocksError:
            assert not fits
        else:
            assert fits
            self.block_tables[sequence_id] = edit.block_ids

    @rule(sequence_id=SEQUENCES, num_tokens=st.integers(1, 18))
    def extend(self, sequence_id: str, num_tokens: int) -> None:
        if sequence_id in self.block_tables:
            edits = self.manager.try_extend(sequence_id, num_tokens, first_position=0)
            assert edits == ([] if num_tokens <= self.num_tokens else None)

    @rule(sequence_id=SEQUENCES)
    def release(self, sequence_id: str) -> None:
        try:
            self.manager.release(sequence_id)
        except UnknownSequenceError:
            assert sequence_id not in self.block_tables
        else:
            del self.block_tables[sequence_id]

    @invariant()
    def every_slot_is_free_or_of_one_sequence(self) -> None:
        in_use = [block_id for block_ids in self.block_tables.values() for block_id in block_ids]
        assert len(set(in_use)) == len(in_use)
        assert self.manager.num_free_blocks == self.manager.num_blocks - len(in_use)
        assert {
            sequence_id: list(self.manager.blocks(sequence_id)) for sequence_id in self.block_tables
        } == self.block_tables
        assert (self.manager.audit(), self.manager.reclaim()) == ([], 0)


TestSlotConservation = pytest.mark.covers("kv-cache/contiguous-slots", "kv-cache/audit-is-empty")(SlotMachine.TestCase)
TestSlotConservation.settings = settings(stateful_step_count=25)
