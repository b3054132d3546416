"""`StateSlots`: the slots of sequences' states, and the states that are kept for other sequences.

A step overwrites a sequence's state, unless what it reads is kept or another sequence reads it too:

    step          1          2          3          4
    slots     -  ->  a    a  ->  a    a  ->  b    b  ->  b      a was kept after step 2: its hash finds it

Such a step cannot be computed again. So an engine lets its sequences overwrite their states until a step fails, and
then computes them anew while `is_repeatable` is set: each has two slots, and no step writes what it reads.

Draft tokens behind a step's tokens take a slot each, and the tokens themselves one that they do not read: so the state
behind the last draft that is right is there. They take only what no sequence may need, and give it back before the next
step.

A kept state is a block of a `BlockPool`: idle once no sequence reads it, and evicted least recently used first.
"""

from collections import Counter, deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import NamedTuple

from infer_cache.block_pool import BlockPool
from infer_cache.leaks import LeakedBlock
from infer_cache.states.sequence_states import NO_MOVE, StateCounts, StateMove


class _Held(NamedTuple):
    end: int  # tokens that the state is of
    slot: int


class _Kept(NamedTuple):
    end: int
    slot: int
    state_hash: bytes


@dataclass(slots=True)
class _Sequence:
    """The slots of one sequence.

    Attributes:
        held: states, the oldest first: what its latest step reads, if it writes elsewhere, what that writes, and what
            its drafts write. Before the next step, the last of these alone.
        latest: the slots of its latest step.
        positions: ends of blocks whose states stay kept; others only until a later one is kept.
        to_keep: hashes of the states to keep once their step is computed, by their ends.
        kept: what it has kept.
    """

    held: deque[_Held] = field(default_factory=deque)
    latest: StateMove = NO_MOVE
    positions: frozenset[int] = frozenset()
    to_keep: dict[int, bytes] = field(default_factory=dict)
    kept: list[_Kept] = field(default_factory=list)


LEAST_SLOTS = 2
"""Slots that one sequence needs to run where steps are repeatable."""


class StateSlots:
    """Slots of states. Each sequence has its share of them for as long as it runs; the others hold kept states."""

    __slots__ = ("_pool", "_sequences", "is_repeatable")

    def __init__(self, num_slots: int, *, keeps_states: bool) -> None:
        """Start without sequences, which overwrite their states.

        Args:
            num_slots: slots of all sequences and of kept states.
            keeps_states: keep states that no sequence reads until they are evicted.

        Raises:
            ValueError: there are fewer slots than one sequence needs.
        """
        if num_slots < LEAST_SLOTS:
            raise ValueError(f"`num_slots` is {num_slots}; one sequence needs {LEAST_SLOTS}.")
        self._pool = BlockPool(num_slots, keeps_idle=keeps_states)
        self._sequences: dict[str, _Sequence] = {}
        self.is_repeatable = False
        """Whether no step writes what it reads. Set it while no sequence is open."""

    @property
    def pool(self) -> BlockPool:
        """The slots, with their holders and hashes."""
        return self._pool

    @property
    def counts(self) -> StateCounts:
        """The number of slots, and what they hold."""
        pool = self._pool
        return StateCounts(pool.num_blocks, pool.num_free, pool.num_idle, pool.num_evictions)

    def can_open(self, slot: int | None = None) -> bool:
        """Return whether another sequence can run, which begins with the kept state `slot`, if it is not None."""
        return self._are_enough(len(self._sequences) + 1, [*self._read(), *([] if slot is None else [slot])])

    @property
    def usage(self) -> float:
        """Share of the slots that running sequences have or may take, in [0, 1]."""
        return len(self._sequences) * self._share / self._pool.num_blocks

    def find(self, state_hash: bytes) -> int | None:
        """Return the slot of the state that is kept under this hash, or None. Call `settle` before."""
        return self._pool.find(state_hash)

    def open(self, sequence_id: str, *, end: int = 0, slot: int | None = None) -> None:
        """Give a sequence its share of the slots; it begins with the kept state `slot`, of its first `end` tokens.

        Raises:
            ValueError: the sequence has slots, there are too few, or the state was evicted since it was found. Nothing
                has changed.
        """
        if sequence_id in self._sequences:
            raise ValueError(f"`sequence_id` {sequence_id!r} has a state already; `close` it first.")
        if not self.can_open(slot):
            raise ValueError(f"All {self._pool.num_blocks} slots are given to {len(self._sequences)} sequences.")
        sequence = _Sequence()
        if slot is not None:
            self._pool.add_reference((slot,), holder=sequence_id)
            sequence.held.append(_Held(end, slot))
        self._sequences[sequence_id] = sequence

    def can_jump(self, sequence_id: str, slot: int) -> bool:
        """Return whether a sequence can go on from the kept state `slot`, so that all others can run."""
        return self._are_enough(len(self._sequences), [*self._read(but=sequence_id), slot])

    def jump(self, sequence_id: str, *, end: int, slot: int) -> None:
        """Let a sequence go on from the kept state `slot`, of its first `end` tokens, in place of its own."""
        self._pool.add_reference((slot,), holder=sequence_id)
        held = self._sequences[sequence_id].held
        while held:
            self._pool.release((held.popleft().slot,), holder=sequence_id)
        held.append(_Held(end, slot))

    def move(self, chunks: Iterable[tuple[str, int, int]]) -> dict[str, StateMove]:
        """Return the slots of each sequence in a step that computes its tokens from `start` to `end`.

        The steps before must have been launched: this one may write what they read.

        Raises:
            RuntimeError: a sequence has no state of its first `start` tokens.
        """
        chunks = tuple(chunks)
        starts = {sequence_id: start for sequence_id, start, _ in chunks}
        for sequence_id, sequence in self._sequences.items():
            self._settle(sequence_id, sequence)  # before its slot may be written again
            self._trim(sequence_id, sequence.held, end=starts.get(sequence_id))
        shared = _repeated(self._read())
        spare = self._pool.num_blocks - len(self._sequences) * self._share - len(shared)
        moves: dict[str, StateMove] = {}
        for sequence_id, start, end in chunks:
            sequence = self._sequences[sequence_id]
            held = sequence.held
            if start and (not held or held[-1].end != start):
                raise RuntimeError(f"sequence {sequence_id!r} has no state of its first {start} tokens")
            read = held[-1].slot if start else -1
            stays = self._pool.is_cached(read) and spare > 0
            if not start or stays or self.is_repeatable or read in shared:
                (write,) = self._pool.allocate(1, holder=sequence_id)
                spare -= stays
            else:
                self._pool.uncache_block(read)
                write = held.pop().slot
            held.append(_Held(end, write))
            moves[sequence_id] = sequence.latest = StateMove(read, write)
        return moves

    def move_drafts(self, sequence_id: str, most: int) -> list[StateMove]:
        """Return the slots of a sequence's latest step, and of up to `most` draft tokens behind it.

        There are fewer where running sequences may need the slots. Kept states are evicted, if they are in the way. A
        step that was to overwrite its state gets a slot to write, if there is one for a draft too.
        """
        sequence = self._sequences[sequence_id]
        held, (read, write) = sequence.held, sequence.latest
        taken = sum(max(self._share, len(each.held)) for each in self._sequences.values())
        overwrites = read == write
        num_drafts = min(most, self._pool.num_blocks - taken - overwrites)
        if num_drafts <= 0:
            return [sequence.latest]
        end = held[-1].end
        slots = self._pool.allocate(num_drafts + overwrites, holder=sequence_id)
        if overwrites:
            write, *slots = slots
            held.append(_Held(end, write))
            sequence.latest = StateMove(read, write)
        held.extend(_Held(end + number, slot) for number, slot in enumerate(slots, 1))
        return [sequence.latest, *(StateMove(*each) for each in pairwise((write, *slots)))]

    def release_drafts(self, sequence_id: str, num_tokens: int) -> None:
        """Take back the slots of drafts behind a sequence's first `num_tokens` tokens, and keep what is to be kept."""
        sequence = self._sequences.get(sequence_id)
        if sequence is not None:
            self._settle(sequence_id, sequence)
            self._trim(sequence_id, sequence.held, end=num_tokens)

    def keep_at(self, sequence_id: str, ends: Sequence[int]) -> None:
        """Let the states at these ends of blocks stay kept. Of those elsewhere a sequence keeps the latest alone."""
        sequence = self._sequences[sequence_id]
        sequence.positions |= frozenset(ends)

    def next_kept(self, sequence_id: str, start: int, end: int) -> int:
        """Return the first position between `start` and `end` whose state is to stay kept, or `end`."""
        return min((each for each in self._sequences[sequence_id].positions if start < each < end), default=end)

    def keep(self, sequence_id: str, end: int, state_hash: bytes) -> None:
        """Keep the state of a sequence's first `end` tokens under `state_hash`, once its step is computed."""
        sequence = self._sequences.get(sequence_id)
        if sequence is not None:
            sequence.to_keep[end] = state_hash

    def settle(self) -> None:
        """Let `find` return the states of the steps so far, which the next step may read. Call it before a step."""
        for sequence_id, sequence in self._sequences.items():
            self._settle(sequence_id, sequence)

    def forget_after(self, sequence_id: str, num_tokens: int) -> None:
        """Do not keep what a sequence has kept, or was to keep, of more than its first `num_tokens` tokens."""
        sequence = self._sequences[sequence_id]
        sequence.to_keep = {end: each for end, each in sequence.to_keep.items() if end <= num_tokens}
        for kept in [each for each in sequence.kept if each.end > num_tokens]:
            self._drop(kept, sequence)

    def close(self, sequence_id: str) -> None:
        """Take back the slots of a sequence, if it has any; what it has kept stays."""
        sequence = self._sequences.get(sequence_id)
        if sequence is None:
            return
        self._settle(sequence_id, sequence)
        del self._sequences[sequence_id]
        self._pool.release([each.slot for each in sequence.held], holder=sequence_id)

    def audit(self, *, group: int) -> list[LeakedBlock]:
        """Return the leaked slots, as blocks of `group`: allocated, but of no sequence and not kept."""
        pool = self._pool
        return [
            LeakedBlock(group, slot, pool.holders(slot), pool.is_cached(slot)) for slot in pool.audit(self._reachable())
        ]

    def reclaim(self) -> int:
        """Free the slots that `audit` finds and return how many they were."""
        return self._pool.reclaim(self._reachable())

    def _reachable(self) -> Iterator[int]:
        for sequence in self._sequences.values():
            yield from (each.slot for each in sequence.held)

    @property
    def _share(self) -> int:
        """Slots that a sequence may need in a step whose state no other one reads."""
        return 2 if self.is_repeatable else 1

    def _are_enough(self, num_sequences: int, read: Iterable[int]) -> bool:
        """Whether so many sequences can compute a step together, of which those that have a state `read` it there.

        Where several read one slot, each writes another.
        """
        return num_sequences * self._share + len(_repeated(read)) <= self._pool.num_blocks

    def _read(self, *, but: str | None = None) -> Iterator[int]:
        """Yield the slot that each sequence's next step reads, if it has a state."""
        for sequence_id, sequence in self._sequences.items():
            if sequence.held and sequence_id != but:
                yield sequence.held[-1].slot

    def _trim(self, sequence_id: str, held: deque[_Held], *, end: int | None) -> None:
        """Take back the slots of states of more than `end` tokens, if it is not None, and all older ones but the last.

        More have drafts that were wrong, and a step that was not computed.
        """
        while end is not None and held and held[-1].end > end:
            self._pool.release((held.pop().slot,), holder=sequence_id)
        while len(held) > 1:
            self._pool.release((held.popleft().slot,), holder=sequence_id)

    def _settle(self, sequence_id: str, sequence: _Sequence) -> None:
        """Keep the states that are to be kept and whose step was scheduled."""
        if not sequence.to_keep:
            return
        slot_of = {each.end: each.slot for each in sequence.held}
        for end in sorted(sequence.to_keep.keys() & slot_of.keys()):
            state_hash, slot = sequence.to_keep.pop(end), slot_of[end]
            if self._pool.find(state_hash) is not None or self._pool.is_cached(slot):
                continue
            self._pool.cache_block(slot, state_hash)
            sequence.kept = [each for each in sequence.kept if self._pool.find(each.state_hash) == each.slot]
            for before in [each for each in sequence.kept if each.end not in sequence.positions]:
                if self._is_unread(before, sequence_id):
                    self._drop(before, sequence)
            sequence.kept.append(_Kept(end, slot, state_hash))

    def _is_unread(self, kept: _Kept, sequence_id: str) -> bool:
        """Whether no other sequence reads a state that this one has kept."""
        return not {*self._pool.holders(kept.slot)} - {sequence_id}

    def _drop(self, kept: _Kept, sequence: _Sequence) -> None:
        if self._pool.find(kept.state_hash) == kept.slot:
            self._pool.uncache_block(kept.slot)
        sequence.kept.remove(kept)


def _repeated(slots: Iterable[int]) -> set[int]:
    """Return the slots that occur more than once."""
    return {slot for slot, count in Counter(slots).items() if count > 1}
