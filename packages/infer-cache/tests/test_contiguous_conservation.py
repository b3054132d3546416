"""No interleaving makes or loses a slot: `ContiguousKVCacheManager` against a plain set."""

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from infer_cache import ContiguousKVCacheManager, OutOfBlocksError, UnknownSequenceError

SEQUENCES = st.sampled_from("abcd")


class SlotMachine(RuleBasedStateMachine):
    """The model is which blocks each sequence was given."""

    @initialize(num_slots=st.integers(0, 3), blocks_per_slot=st.integers(1, 4), block_size=st.integers(1, 4))
    def start(self, num_slots: int, blocks_per_slot: int, block_size: int) -> None:
        self.manager = ContiguousKVCacheManager(num_slots, blocks_per_slot, block_size)
        self.num_slots, self.num_tokens = num_slots, blocks_per_slot * block_size
        self.held: dict[str, list[int]] = {}

    @rule(name=SEQUENCES, num_tokens=st.integers(1, 18))
    def admit(self, name: str, num_tokens: int) -> None:
        if name in self.held:
            return
        hit = self.manager.find([], num_tokens)
        fits = len(self.held) < self.num_slots and num_tokens <= self.num_tokens
        assert self.manager.fits(num_tokens, hit) is fits
        try:
            (edit,) = self.manager.admit(name, num_tokens, hit)
        except OutOfBlocksError:
            assert not fits
        else:
            assert fits
            self.held[name] = edit.block_ids

    @rule(name=SEQUENCES, num_tokens=st.integers(1, 18))
    def extend(self, name: str, num_tokens: int) -> None:
        if name in self.held:
            edits = self.manager.try_extend(name, num_tokens, first_position=0)
            assert edits == ([] if num_tokens <= self.num_tokens else None)

    @rule(name=SEQUENCES)
    def release(self, name: str) -> None:
        try:
            self.manager.release(name)
        except UnknownSequenceError:
            assert name not in self.held
        else:
            del self.held[name]

    @invariant()
    def every_slot_is_free_or_held_once(self) -> None:
        given = [block_id for block_ids in self.held.values() for block_id in block_ids]
        assert len(set(given)) == len(given)
        assert self.manager.num_free_blocks == self.manager.num_blocks - len(given)
        assert self.manager.num_free_tokens == (self.num_slots - len(self.held)) * self.num_tokens
        assert {name: list(self.manager.blocks(name)) for name in self.held} == self.held
        assert (self.manager.audit(), self.manager.reclaim()) == ([], 0)


TestSlotConservation = SlotMachine.TestCase
TestSlotConservation.settings = settings(stateful_step_count=25)
