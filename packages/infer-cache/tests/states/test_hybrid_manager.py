"""`HybridKVCacheManager` in random traffic: every step reads the state of exactly the tokens before it.

The states of this test are the tokens that they are of. A slot that was given away holds another sequence's tokens, so
a stale or foreign state shows at once.
"""

import random
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from infer_cache import BlockHashes, HybridKVCacheManager, StateMove, StateSlots

BLOCK = 4


@dataclass
class Sequence:
    """A sequence in the traffic: its tokens, how many are computed, and the hashes of its blocks."""

    name: str
    tokens: list[int]
    num_prompt: int
    hashes: BlockHashes = field(default_factory=lambda: BlockHashes(BLOCK))
    computed: int = 0


class Traffic:
    """Drives a manager as the engine does, and keeps what each slot and block would hold."""

    def __init__(self, seed: int, *, num_slots: int, is_repeatable: bool, keeps: bool) -> None:
        self.random = random.Random(seed)  # noqa: S311 - no secret
        self.manager = HybridKVCacheManager(
            [64],
            BLOCK,
            slots=StateSlots(num_slots, keeps_states=keeps),
            keeps_prefixes=keeps,
        )
        self.manager.require_repeatable(is_repeatable=is_repeatable)
        self.held: dict[int, tuple[int, ...]] = {}  # by slot, the tokens of its state
        self.running: list[Sequence] = []
        self.prompts: list[list[int]] = [[1, 2, 3] * 6]
        self.num_names = 0
        self.num_cached = self.num_accepted = 0

    def arrive(self) -> None:
        """Admit a new prompt: one that was seen, up to a point, and then something else."""
        known = self.random.choice(self.prompts)
        prompt = known[: self.random.randint(0, len(known))] + self.random.choices(
            range(3), k=self.random.randint(1, 9)
        )
        self.prompts = [*self.prompts, prompt][-6:]
        self.admit(Sequence(f"s{self.num_names}", list(prompt), len(prompt)))
        self.num_names += 1

    def admit(self, sequence: Sequence) -> None:
        hashes = sequence.hashes.upto(sequence.tokens, len(sequence.tokens))
        hit = self.manager.find(hashes, len(sequence.tokens))
        if not self.manager.fits(len(sequence.tokens), hit):
            return
        self.manager.admit(sequence.name, len(sequence.tokens), hit)
        starts = sorted(self.random.sample(range(len(sequence.tokens)), k=min(2, len(sequence.tokens))))
        self.manager.keep(sequence.name, (*starts, hit.num_cached_keys))
        assert hit.num_tokens < len(sequence.tokens)
        sequence.computed = hit.num_tokens
        self.num_cached += hit.num_tokens
        self.running.append(sequence)

    def step(self, *, fails: bool = False) -> None:
        """Schedule a chunk of some sequences, check what each reads, and write."""
        chunks = []
        for sequence in self.running:
            if self.random.random() < 0.3:
                continue
            hashes = sequence.hashes.upto(sequence.tokens, len(sequence.tokens))
            if sequence.computed < sequence.num_prompt:
                edits = self.manager.reuse_blocks(sequence.name, hashes, sequence.computed)
                if edits:
                    sequence.computed = (edits[-1].column + 1) * BLOCK
            left = len(sequence.tokens) - sequence.computed
            end = sequence.computed + self.random.randint(1, left)
            end = self.manager.chunk_end(sequence.name, sequence.computed, end)
            has_room = end <= self.manager.capacity(sequence.name)
            if not has_room and self.manager.try_extend(sequence.name, end, first_position=sequence.computed) is None:
                continue
            self.manager.cache_blocks(sequence.name, hashes, end)
            chunks.append((sequence, end))
        moves = dict(self.manager.move((sequence.name, sequence.computed, end) for sequence, end in chunks))
        written = [move.write for move in moves.values()]
        assert len(written) == len(set(written))
        for name, move in moves.items():  # nobody else reads what a sequence overwrites
            others = [each.read for other, each in moves.items() if other != name]
            assert move.write not in others
            assert not (self.manager.is_repeatable and move.write == move.read)
        for sequence, _ in chunks:
            read = moves[sequence.name].read
            expected = tuple(sequence.tokens[: sequence.computed])
            assert expected == (() if read < 0 else self.held[read]), "a state of other tokens is read"
        drafted = {}
        for sequence, end in chunks:
            if end == len(sequence.tokens):
                moves[sequence.name], *drafted[sequence.name] = self.manager.move_drafts(
                    sequence.name, self.random.choice((0, 0, 1, 3))
                )
                assert not drafted[sequence.name] or moves[sequence.name].write != moves[sequence.name].read
        slots = [move.write for of_one in (moves.values(), *drafted.values()) for move in of_one]
        assert len(slots) == len(set(slots))
        if fails:
            for sequence, _ in chunks:
                self.held[moves[sequence.name].write] = (-1,)
                self.end(sequence, num_kept=sequence.computed)
            return
        for sequence, end in chunks:
            self.held[moves[sequence.name].write] = tuple(sequence.tokens[:end])
            sequence.computed = end
            if end == len(sequence.tokens):
                sequence.tokens.append(self.random.randrange(3))
                self.verify(sequence, moves[sequence.name].write, drafted[sequence.name])
            self.manager.release_drafts(sequence.name, sequence.computed)

    def verify(self, sequence: Sequence, slot: int, moves: Iterable[StateMove]) -> None:
        """Draft tokens of which some are right, and take those."""
        drafts = self.random.choices(range(3), k=9)
        is_right = True
        for move in moves:
            assert move.read == slot
            slot, draft = move.write, drafts.pop()
            behind = (*self.held[move.read], draft)
            self.held[slot] = behind
            is_right = is_right and tuple(sequence.tokens) == behind
            if is_right:
                sequence.computed += 1
                self.num_accepted += 1
                if sequence.computed % BLOCK == 0 and sequence.computed <= self.manager.capacity(sequence.name):
                    hashes = sequence.hashes.upto(sequence.tokens, sequence.computed)
                    self.manager.cache_blocks(sequence.name, hashes, sequence.computed)
                sequence.tokens.append(self.random.randrange(3))

    def end(self, sequence: Sequence, *, num_kept: int | None = None) -> None:
        """Finish or abort a sequence, of whose states those of the first `num_kept` tokens may be found again."""
        self.running.remove(sequence)
        self.manager.uncache_blocks(sequence.name, sequence.computed if num_kept is None else num_kept)
        self.manager.release(sequence.name)
        self.prompts = [*self.prompts, sequence.tokens][-6:]

    def run(self, num_steps: int) -> None:
        for _ in range(num_steps):
            what = self.random.random()
            if what < 0.35:
                self.arrive()
            elif what < 0.5 and self.running:
                self.end(self.random.choice(self.running))
            elif what < 0.55:
                self.step(fails=True)
            elif what < 0.6 and self.running:  # preempted and admitted again
                preempted = self.random.choice(self.running)
                self.end(preempted)
                preempted.computed = 0
                self.admit(preempted)
            else:
                self.step()
            assert self.manager.audit() == []
            held = [len(each.held) for each in self.manager.slots._sequences.values()]  # noqa: SLF001 - no draft's is left
            assert max(held, default=0) <= 2


@given(
    seed=st.integers(0, 2**32),
    num_slots=st.integers(2, 24),
    is_repeatable=st.booleans(),
    keeps=st.booleans(),
)
def test_every_step_reads_the_state_of_the_tokens_before_it(
    *, seed: int, num_slots: int, is_repeatable: bool, keeps: bool
) -> None:
    traffic = Traffic(seed, num_slots=num_slots, is_repeatable=is_repeatable, keeps=keeps)
    traffic.run(80)
    for sequence in list(traffic.running):
        traffic.end(sequence)
    pool = traffic.manager.slots.pool
    assert pool.num_free == num_slots
    assert traffic.manager.num_free_blocks == 64
    if not keeps:
        assert pool.num_idle == 0


def test_the_traffic_finds_prefixes() -> None:
    found = [Traffic(seed, num_slots=24, is_repeatable=False, keeps=True) for seed in range(10)]
    for traffic in found:
        traffic.run(80)
    assert sum(traffic.num_cached for traffic in found) > 100
    assert sum(traffic.num_accepted for traffic in found) > 50


@pytest.fixture
def manager() -> Iterator[HybridKVCacheManager]:
    made = HybridKVCacheManager(
        [64], BLOCK, slots=StateSlots(16, keeps_states=True), keeps_prefixes=True, max_chunk=BLOCK * 4
    )
    yield made
    assert made.audit() == []


def compute(manager: HybridKVCacheManager, name: str, tokens: list[int], *, starts: tuple[int, ...] = ()) -> int:
    """Admit and compute a prompt in chunks of four blocks, and return how many of its tokens were cached."""
    hashes = BlockHashes(BLOCK).upto(tokens, len(tokens))
    hit = manager.find(hashes, len(tokens))
    manager.admit(name, len(tokens), hit)
    manager.keep(name, (*starts, hit.num_cached_keys))
    computed = hit.num_tokens
    while computed < len(tokens):
        end = manager.chunk_end(name, computed, min(len(tokens), computed + 4 * BLOCK))
        manager.cache_blocks(name, hashes, end)
        manager.move([(name, computed, end)])
        computed = end
    manager.release(name)
    return hit.num_tokens


def test_the_same_prompt_computes_its_last_block_again(manager: HybridKVCacheManager) -> None:
    prompt = list(range(50))
    assert compute(manager, "cold", prompt) == 0
    assert compute(manager, "again", prompt) == 48


def test_a_prompt_that_ends_with_a_block_leaves_a_whole_block(manager: HybridKVCacheManager) -> None:
    prompt = list(range(48))
    assert compute(manager, "cold", prompt) == 0
    assert compute(manager, "again", prompt) == 44


def test_an_edited_message_is_computed_from_its_start(manager: HybridKVCacheManager) -> None:
    conversation = list(range(40))
    assert compute(manager, "cold", conversation + [100] * 30, starts=(41,)) == 0
    assert compute(manager, "edited", conversation + [101] * 30, starts=(41,)) == 40


def test_a_third_prompt_finds_where_the_second_turned_off(manager: HybridKVCacheManager) -> None:
    system = list(range(30))
    assert compute(manager, "first", system + [100] * 30) == 0
    assert compute(manager, "second", system + [101] * 30) == 0  # keys are cached, but no state at that place
    assert compute(manager, "third", system + [102] * 30) == 28


def test_blocks_without_a_state_are_computed_again(manager: HybridKVCacheManager) -> None:
    prompt = list(range(50))
    compute(manager, "cold", prompt)
    hashes = BlockHashes(BLOCK).upto(prompt, len(prompt))
    slot = manager.slots.find(hashes[11])
    assert slot is not None
    manager.slots.pool.uncache_block(slot)
    assert compute(manager, "again", prompt) == 0


def test_only_the_last_starts_cut_a_prompt(manager: HybridKVCacheManager) -> None:
    prompt = list(range(200))
    hit = manager.find((), len(prompt))
    manager.admit("a", len(prompt), hit)
    manager.keep("a", range(0, 160, 8))
    ends, computed = [], 0
    while computed < len(prompt):
        end = manager.chunk_end("a", computed, min(len(prompt), computed + 16))
        manager.move([("a", computed, end)])
        ends.append(end)
        computed = end
    assert ends == [*range(16, 129, 16), 136, 144, 152, 168, 184, 196, 200]
    assert manager.states is manager
    manager.release("a")
