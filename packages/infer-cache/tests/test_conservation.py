"""No interleaving of calls loses a block, gives it twice, or finds one whose content is not that of its hash.

The machine computes like an engine, in plain Python. It writes its own rows from the edits alone, and into each block's
memory, for every position, the tokens up to it. What a computed token attends to must be in this memory.
"""

import random
from collections import Counter
from dataclasses import dataclass, field
from itertools import count

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from infer_cache import BlockHashes, OutOfBlocksError, PagedKVCacheManager, TableEdit

ANY = st.integers(0, 7)
MAX_RUNNING = 4
SOME_RUNNING = precondition(lambda machine: machine.sequences)
WINDOWS = st.none() | st.integers(1, 9)
Content = tuple[str, tuple[int, ...]]


@dataclass
class Sequence:
    """What an engine knows of a sequence; `safe` is the first position whose window is still in the table."""

    tokens: list[int]
    block_hashes: BlockHashes
    salt: str
    rows: list[dict[int, int]]
    num_computed: int
    safe: int = 0
    first: list[int] = field(default_factory=list)

    def content(self, position: int) -> Content:
        """What the keys and values at a position depend on."""
        return (self.salt, tuple(self.tokens[: position + 1]))


class PagedMachine(RuleBasedStateMachine):
    """The model: each sequence's rows, the leaked blocks, and what was written into every block."""

    @initialize(
        groups=st.lists(st.tuples(st.integers(20, 70), WINDOWS), min_size=1, max_size=3),
        block_size=st.integers(1, 4),
        max_chunk=st.none() | st.integers(1, 9),
        keeps_prefixes=st.booleans(),
    )
    def start(
        self, *, groups: list[tuple[int, int | None]], block_size: int, max_chunk: int | None, keeps_prefixes: bool
    ) -> None:
        """Groups are drawn as (tokens that there is room for, window)."""
        self.windows = [window for _, window in groups]
        self.sizes = [num_tokens // block_size for num_tokens, _ in groups]
        self.manager = PagedKVCacheManager(
            self.sizes, block_size, windows=self.windows, max_chunk=max_chunk, keeps_prefixes=keeps_prefixes
        )
        self.max_chunk, self.keeps_prefixes = max_chunk, keeps_prefixes
        self.sequence_ids = count()
        self.sequences: dict[str, Sequence] = {}
        self.leaked: dict[tuple[int, int], str] = {}
        self.memory: dict[tuple[int, int, int], Content] = {}

    @precondition(lambda self: len(self.sequences) < MAX_RUNNING)
    @rule(num_tokens=st.integers(1, 24), fork=st.sampled_from([None, None, 5, 13]), salt=st.sampled_from(["", "", "x"]))
    def admit(self, num_tokens: int, fork: int | None, salt: str) -> None:
        sequence_id = str(next(self.sequence_ids))
        tokens = [int(fork is not None and position >= fork) for position in range(num_tokens)]
        block_hashes = BlockHashes(self.manager.block_size, salt=salt)
        hit = self.manager.find(block_hashes.upto(tokens, num_tokens), num_tokens)
        sequence = Sequence(tokens, block_hashes, salt, [{} for _ in self.windows], min(hit.num_tokens, num_tokens - 1))
        sequence.safe = sequence.num_computed
        sequence.first = list(hit.first_blocks)
        shared = [len(self.referenced(group).intersection(ids)) for group, ids in enumerate(hit.block_ids)]
        assert [num_shared * self.manager.block_size for num_shared in shared] == list(hit.num_shared_tokens)
        fits = self.manager.fits(num_tokens, hit)
        free = [self.num_free(group) for group in range(len(self.windows))]
        try:
            edits = self.manager.admit(sequence_id, num_tokens, hit)
        except OutOfBlocksError:
            assert not fits
            return
        assert fits
        added = [len(edit.block_ids) - num_shared for edit, num_shared in zip(edits, shared, strict=True)]
        self.sequences[sequence_id] = sequence
        self.write_rows(sequence, edits)
        assert [before - self.num_free(group) for group, before in enumerate(free)] == added
        for group in range(len(self.windows)):
            for position in range(hit.first_blocks[group] * self.manager.block_size, hit.num_tokens):
                assert self.read(sequence, group, position) == sequence.content(position)

    @SOME_RUNNING
    @rule(which=ANY, caches=st.booleans())
    def finish_prompt(self, which: int, *, caches: bool) -> None:
        """Compute the rest of a prompt, chunk by chunk."""
        _, sequence = self.choose(which)
        before = -1
        while before < sequence.num_computed < len(sequence.tokens):
            before = sequence.num_computed
            self.compute(which, len(sequence.tokens), caches=caches)

    @SOME_RUNNING
    @rule(which=ANY, num_tokens=st.integers(1, 16), caches=st.booleans())
    def compute(self, which: int, num_tokens: int, *, caches: bool) -> None:
        """Compute the next tokens, a generated one after the prompt's last, and read what they attend to."""
        sequence_id, sequence = self.choose(which)
        first = sequence.num_computed
        if first == len(sequence.tokens):
            sequence.tokens.append(0)
        end = min(first + min(num_tokens, self.max_chunk or num_tokens), len(sequence.tokens))
        if not self.extend(sequence_id, sequence, end):
            return
        for group, window in enumerate(self.windows):
            for position in range(first, end):
                self.write(sequence, group, position, sequence.content(position))
            for position in range(max(0, first - (window or end) + 1), end):
                assert self.read(sequence, group, position) == sequence.content(position)
        sequence.num_computed = end
        if caches:
            self.cache_blocks(which, end)

    @SOME_RUNNING
    @rule(which=ANY, num_tokens=st.integers(0, 30))
    def cache_blocks(self, which: int, num_tokens: int) -> None:
        sequence_id, sequence = self.choose(which)
        hashes = sequence.block_hashes.upto(sequence.tokens, len(sequence.tokens))
        self.manager.cache_blocks(sequence_id, hashes, min(num_tokens, sequence.num_computed))

    @SOME_RUNNING
    @rule(which=ANY)
    def fail(self, which: int) -> None:
        """A step has written rubbish: its blocks are uncached, and it is computed again."""
        sequence_id, sequence = self.choose(which)
        self.manager.uncache_blocks(sequence_id, sequence.safe)
        for group in range(len(self.windows)):
            counts = Counter(block_id for other in self.sequences.values() for block_id in other.rows[group].values())
            for position in range(sequence.safe, sequence.num_computed):
                if counts[sequence.rows[group][position // self.manager.block_size]] == 1:
                    self.write(sequence, group, position, ("rubbish", ()))
        sequence.num_computed = sequence.safe

    @SOME_RUNNING
    @rule(which=ANY)
    def reuse_blocks(self, which: int) -> None:
        sequence_id, sequence = self.choose(which)
        hashes = sequence.block_hashes.upto(sequence.tokens, len(sequence.tokens))
        edits = self.manager.reuse_blocks(sequence_id, hashes, sequence.num_computed)
        columns = sorted({edit.column for edit in edits})
        index, within = divmod(sequence.num_computed, self.manager.block_size)
        assert columns == list(range(index, index + len(columns)))
        assert not (within and columns)
        assert len(edits) == len(columns) * len(self.windows)
        self.write_rows(sequence, edits)
        for edit in edits:
            for position in range(edit.column * self.manager.block_size, (edit.column + 1) * self.manager.block_size):
                assert self.read(sequence, edit.group, position) == sequence.content(position)
        reused = sequence.num_computed + len(columns) * self.manager.block_size
        sequence.num_computed = min(reused, max(sequence.num_computed, len(sequence.tokens) - 1))

    @SOME_RUNNING
    @rule(which=ANY)
    def release(self, which: int) -> None:
        sequence_id, _ = self.choose(which)
        self.manager.release(sequence_id)
        del self.sequences[sequence_id]

    @precondition(lambda self: len(self.leaked) < MAX_RUNNING)
    @rule(group=st.integers(0, 2), num_blocks=st.integers(1, 3), holder=st.sampled_from(["lost", "gone"]))
    def leak(self, group: int, num_blocks: int, holder: str) -> None:
        group %= len(self.windows)
        if num_blocks <= self.num_free(group):
            block_ids = self.manager.groups[group].block_pool.allocate(num_blocks, holder=holder)
            self.leaked |= {(group, block_id): holder for block_id in block_ids}

    @precondition(lambda self: self.leaked)
    @rule()
    def reclaim(self) -> None:
        assert self.manager.reclaim() == len(self.leaked)
        self.leaked.clear()

    @invariant()
    def every_block_is_free_or_referenced_or_leaked(self) -> None:
        for group, num_blocks in enumerate(self.sizes):
            pool = self.manager.groups[group].block_pool
            referenced = self.referenced(group)
            leaked = {block_id for number, block_id in self.leaked if number == group}
            assert not referenced & leaked
            assert referenced | leaked == {block_id for block_id in range(num_blocks) if pool.is_referenced(block_id)}
            assert pool.num_free + len(referenced) + len(leaked) == num_blocks
            assert pool.num_idle <= (pool.num_free if self.keeps_prefixes else 0)
        found = [(block.group, block.block_id, block.holders, block.is_cached) for block in self.manager.audit()]
        assert found == [(*place, (holder,), False) for place, holder in sorted(self.leaked.items())]
        assert self.manager.num_free_blocks == sum(map(self.num_free, range(len(self.windows))))

    @invariant()
    def every_reference_is_of_a_sequence_that_has_the_block(self) -> None:
        for group in range(len(self.windows)):
            holders: dict[int, list[str]] = {}
            for sequence_id in self.sequences:
                for block_id in self.manager.blocks(sequence_id, group):
                    holders.setdefault(block_id, []).append(sequence_id)
            pool = self.manager.groups[group].block_pool
            assert all(sorted(map(str, pool.holders(block_id))) == sorted(of) for block_id, of in holders.items())

    @invariant()
    def block_tables_are_the_rows_that_edits_have_written(self) -> None:
        for sequence_id, sequence in self.sequences.items():
            for group, row in enumerate(sequence.rows):
                assert self.manager.blocks(sequence_id, group) == tuple(row[column] for column in sorted(row))
                assert len(set(row.values())) == len(row)

    def teardown(self) -> None:
        if not hasattr(self, "manager"):
            return
        self.manager.reclaim()
        for sequence_id in self.sequences:
            self.manager.release(sequence_id)
        assert self.manager.num_free_blocks == self.manager.num_blocks
        # All blocks are free: each group allocates all of them at once.
        for group in self.manager.groups:
            assert sorted(group.block_pool.allocate(group.block_pool.num_blocks)) == list(
                range(group.block_pool.num_blocks)
            )

    def choose(self, which: int) -> tuple[str, Sequence]:
        """One of the running sequences."""
        return list(self.sequences.items())[which % len(self.sequences)]

    def extend(self, sequence_id: str, sequence: Sequence, end: int) -> bool:
        """Make room for the tokens before `end`; return whether there was enough."""
        size = self.manager.block_size
        for group, window in enumerate(self.windows):
            if window is not None:
                first = max(sequence.first[group], (sequence.num_computed - window + 1) // size)
                sequence.first[group] = first
                for column in [column for column in sequence.rows[group] if column < first]:
                    del sequence.rows[group][column]
        rows = sequence.rows
        missing = [
            max(0, -(-end // size) - max(row, default=first - 1) - 1)
            for row, first in zip(rows, sequence.first, strict=True)
        ]
        fits = all(num_blocks <= self.num_free(group) for group, num_blocks in enumerate(missing))
        edits = self.manager.try_extend(sequence_id, end, first_position=sequence.num_computed)
        assert (edits is not None) is fits
        self.write_rows(sequence, edits or [])
        sequence.safe = sequence.num_computed
        return fits

    def referenced(self, group: int) -> set[int]:
        return {block_id for sequence in self.sequences.values() for block_id in sequence.rows[group].values()}

    def num_free(self, group: int) -> int:
        num_leaked = sum(number == group for number, _ in self.leaked)
        return self.sizes[group] - num_leaked - len(self.referenced(group))

    def write_rows(self, sequence: Sequence, edits: list[TableEdit]) -> None:
        for edit in edits:
            sequence.rows[edit.group] |= {edit.column + i: block_id for i, block_id in enumerate(edit.block_ids)}

    def write(self, sequence: Sequence, group: int, position: int, content: Content) -> None:
        column, offset = divmod(position, self.manager.block_size)
        self.memory[group, sequence.rows[group][column], offset] = content

    def read(self, sequence: Sequence, group: int, position: int) -> Content:
        column, offset = divmod(position, self.manager.block_size)
        return self.memory[group, sequence.rows[group][column], offset]


TestPagedConservation = pytest.mark.covers("kv-cache/owners", "kv-cache/audit-is-empty")(PagedMachine.TestCase)
TestPagedConservation.settings = settings(stateful_step_count=40)


@pytest.mark.parametrize("seed", range(12))
def test_long_random_traffic_conserves_blocks_and_contents(seed: int) -> None:
    """The same rules, so often that the pools are filled and emptied many times."""
    chance = random.Random(seed)  # noqa: S311 - a walk, no secret
    machine, size = PagedMachine(), chance.randint(1, 4)
    windows = [None, chance.randint(1, 9), chance.randint(1, 30)][seed % 2 : chance.randint(2, 3)]
    machine.start(
        groups=[(chance.randint(40, 90), window) for window in windows],
        block_size=size,
        max_chunk=chance.choice([None, 5, 8]),
        keeps_prefixes=seed % 4 != 0,
    )
    for _ in range(300):
        which, num_tokens, caches = chance.randrange(8), chance.randint(1, 24), chance.random() < 0.8
        fork, salt = chance.choice([None, None, 5, 13]), chance.choice(["", "", "", "x"])
        for _ in range(min(2, MAX_RUNNING - len(machine.sequences))):
            machine.admit(num_tokens, fork, salt)
        if machine.sequences:
            match chance.choice(["finish", "compute", "compute", "reuse", "reuse", "release", "release", "fail"]):
                case "finish":
                    machine.finish_prompt(which, caches=caches)
                case "compute":
                    machine.compute(which, num_tokens, caches=caches)
                case "reuse":
                    machine.reuse_blocks(which)
                case "release":
                    machine.release(which)
                case _:
                    machine.fail(which)
        machine.every_block_is_free_or_referenced_or_leaked()
        machine.block_tables_are_the_rows_that_edits_have_written()
    machine.teardown()
