"""No interleaving of reserve, release, leaks and reclaim makes or loses a block: `BlockTables` against plain counts."""

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from infer_cache import BlockTables, OutOfBlocksError, UnknownSequenceError

SEQUENCES = st.sampled_from(["a", "b", "c", "d"])


class TablesMachine(RuleBasedStateMachine):
    """The model is how many blocks each sequence must hold, and the set of leaked ids."""

    @initialize(num_blocks=st.integers(0, 24), block_size=st.integers(1, 5))
    def start(self, num_blocks: int, block_size: int) -> None:
        self.tables = BlockTables(num_blocks, block_size)
        self.held: dict[str, int] = {}
        self.leaked: set[int] = set()

    @rule(sequence=SEQUENCES, num_tokens=st.integers(0, 60))
    def reserve(self, sequence: str, num_tokens: int) -> None:
        before = self.held.get(sequence, 0)
        needed = max(before, -(-num_tokens // self.tables.block_size))
        fits = needed - before <= self.num_free
        assert self.tables.can_reserve(sequence, num_tokens) is fits
        try:
            added = self.tables.reserve(sequence, num_tokens)
        except OutOfBlocksError:
            assert not fits
        else:
            assert fits
            assert len(added) == needed - before
            assert self.tables.blocks(sequence)[before:] == tuple(added)
            self.held[sequence] = needed

    @rule(sequence=SEQUENCES)
    def release(self, sequence: str) -> None:
        try:
            self.tables.release(sequence)
        except UnknownSequenceError:
            assert sequence not in self.held
        else:
            del self.held[sequence]

    @rule(count=st.integers(0, 4))
    def leak(self, count: int) -> None:
        if self.tables.allocator.can_allocate(count):
            self.leaked |= set(self.tables.allocator.allocate(count, owner="nobody"))

    @rule()
    def reclaim(self) -> None:
        assert self.tables.reclaim() == len(self.leaked)
        self.leaked.clear()

    @invariant()
    def every_block_is_free_or_held_once_or_leaked(self) -> None:
        tables = {sequence: self.tables.blocks(sequence) for sequence in self.held}
        assert {sequence: len(table) for sequence, table in tables.items()} == self.held
        held = [block_id for table in tables.values() for block_id in table]
        assert len({*held, *self.leaked}) == len(held) + len(self.leaked)
        assert self.tables.num_free_blocks == self.num_free
        assert self.tables.audit() == sorted(self.leaked)

    def teardown(self) -> None:
        if not hasattr(self, "tables"):
            return
        self.tables.reclaim()
        for sequence in self.held:
            self.tables.release(sequence)
        # All blocks are back, and as the one run that they were at the start.
        everything = self.tables.reserve("everything", self.tables.num_blocks * self.tables.block_size)
        assert everything == list(range(self.tables.num_blocks))

    @property
    def num_free(self) -> int:
        return self.tables.num_blocks - sum(self.held.values()) - len(self.leaked)


TestConservation = TablesMachine.TestCase
TestConservation.settings = settings(stateful_step_count=40)
