"""`StateSlots`: the slots of sequences' states, and the states that are kept for other sequences.

A step reads a sequence's state in one slot and writes it into another, so it can be computed again, and what it has
read can be kept:

    step          1          2          3          4
    slots     -  ->  a    a  ->  b    b  ->  a    a  ->  c      b was kept: its hash finds it, and c takes its place

Draft tokens behind a step's tokens take a slot each, so the state behind the last one that is right is there. They take
only what no sequence may need, and give it back before the next step.

A kept state is a block of a `BlockPool`: idle once no sequence reads it, and evicted least recently used first.
"""

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import NamedTuple

from infer_cache.block_pool import BlockPool
from infer_cache.leaks import LeakedBlock
from infer_cache.states.sequence_states import StateCounts, StateMove


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
        held: the states that it reads and writes, oldest first; at most `slots_per_sequence`, but for those of drafts.
        positions: ends of blocks whose states stay kept; others only until a later one is kept.
        to_keep: hashes of the states to keep once their step is computed, by their ends.
        kept: what it has kept.
    """

    held: deque[_Held] = field(default_factory=deque)
    positions: frozenset[int] = frozenset()
    to_keep: dict[int, bytes] = field(default_factory=dict)
    kept: list[_Kept] = field(default_factory=list)


class StateSlots:
    """Slots of states. Each sequence has its share of them for as long as it runs; the others hold kept states."""

    __slots__ = ("_pool", "_sequences", "_slots_per_sequence")

    def __init__(self, num_slots: int, *, slots_per_sequence: int = 2, keeps_states: bool) -> None:
        """Start without sequences.

        Args:
            num_slots: slots of all sequences and of kept states.
            slots_per_sequence: slots that a running sequence may hold: 2, or 3 if a step is scheduled before the one
                before it is known to have succeeded.
            keeps_states: keep states that no sequence reads until they are evicted.

        Raises:
            ValueError: `slots_per_sequence` is below 2, or there are fewer slots than one sequence needs.
        """
        if slots_per_sequence < 2:
            raise ValueError(f"`slots_per_sequence` is {slots_per_sequence}; it must be at least 2.")
        if num_slots < slots_per_sequence:
            raise ValueError(f"`num_slots` is {num_slots}; one sequence needs {slots_per_sequence}.")
        self._pool = BlockPool(num_slots, keeps_idle=keeps_states)
        self._slots_per_sequence = slots_per_sequence
        self._sequences: dict[str, _Sequence] = {}

    @property
    def pool(self) -> BlockPool:
        """The slots, with their holders and hashes."""
        return self._pool

    @property
    def counts(self) -> StateCounts:
        """The number of slots, and what they hold."""
        pool = self._pool
        return StateCounts(pool.num_blocks, pool.num_free, pool.num_idle, pool.num_evictions)

    @property
    def can_open(self) -> bool:
        """Whether another sequence can have its share of the slots."""
        return (len(self._sequences) + 1) * self._slots_per_sequence <= self._pool.num_blocks

    @property
    def usage(self) -> float:
        """Share of the slots that running sequences have or may take, in [0, 1]."""
        return len(self._sequences) * self._slots_per_sequence / self._pool.num_blocks

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
        if not self.can_open:
            raise ValueError(f"All {self._pool.num_blocks} slots are given to {len(self._sequences)} sequences.")
        sequence = _Sequence()
        if slot is not None:
            self._pool.add_reference((slot,), holder=sequence_id)
            sequence.held.append(_Held(end, slot))
        self._sequences[sequence_id] = sequence

    def jump(self, sequence_id: str, *, end: int, slot: int) -> None:
        """Let a sequence go on from the kept state `slot`, of its first `end` tokens, in place of its own."""
        self._pool.add_reference((slot,), holder=sequence_id)
        held = self._sequences[sequence_id].held
        while held:
            self._pool.release((held.popleft().slot,), holder=sequence_id)
        held.append(_Held(end, slot))

    def move(self, sequence_id: str, start: int, end: int) -> StateMove:
        """Return the slots of a step that computes a sequence's tokens from `start` to `end`.

        The steps before, but for the last `slots_per_sequence - 2`, must be computed.

        Raises:
            RuntimeError: the sequence has no state of its first `start` tokens.
        """
        sequence, pool = self._sequences[sequence_id], self._pool
        held = sequence.held
        if sequence.to_keep:  # before its slot may be written again
            self._settle(sequence_id, sequence)
        self._trim(sequence_id, held, end=start, most=self._slots_per_sequence - 1)
        if start and (not held or held[-1].end != start):
            raise RuntimeError(f"sequence {sequence_id!r} has no state of its first {start} tokens")
        read = held[-1].slot if start else -1
        (write,) = pool.allocate(1, holder=sequence_id)
        held.append(_Held(end, write))
        return StateMove(read, write)

    def move_drafts(self, sequence_id: str, most: int) -> list[StateMove]:
        """Return the slots of up to `most` draft tokens behind those of the latest `move`.

        There are fewer where running sequences may need the slots. Kept states are evicted, if they are in the way.
        """
        held = self._sequences[sequence_id].held
        taken = sum(max(self._slots_per_sequence, len(each.held)) for each in self._sequences.values())
        last = held[-1]
        slots = self._pool.allocate(max(0, min(most, self._pool.num_blocks - taken)), holder=sequence_id)
        held.extend(_Held(last.end + number, slot) for number, slot in enumerate(slots, 1))
        return [StateMove(*each) for each in pairwise((last.slot, *slots))]

    def release_drafts(self, sequence_id: str, num_tokens: int) -> None:
        """Take back the slots of drafts behind a sequence's first `num_tokens` tokens, and keep what is to be kept."""
        sequence = self._sequences.get(sequence_id)
        if sequence is None:
            return
        self._settle(sequence_id, sequence)
        self._trim(sequence_id, sequence.held, end=num_tokens, most=self._slots_per_sequence)

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
            if sequence.to_keep:
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

    def _trim(self, sequence_id: str, held: deque[_Held], *, end: int, most: int) -> None:
        """Take back the slots of states of more than `end` tokens, and the oldest of more than `most`."""
        while held and held[-1].end > end:  # of a step that was not computed, or of drafts that were wrong
            self._pool.release((held.pop().slot,), holder=sequence_id)
        while len(held) > most:
            self._pool.release((held.popleft().slot,), holder=sequence_id)

    def _settle(self, sequence_id: str, sequence: _Sequence) -> None:
        """Keep the states that are to be kept and whose step was scheduled."""
        slot_of = {each.end: each.slot for each in sequence.held}
        for end in sorted(sequence.to_keep.keys() & slot_of.keys()):
            state_hash, slot = sequence.to_keep.pop(end), slot_of[end]
            if self._pool.find(state_hash) is not None or self._pool.is_cached(slot):
                continue
            self._pool.cache_block(slot, state_hash)
            for before in [each for each in sequence.kept if each.end not in sequence.positions]:
                if self._is_unread(before, sequence_id):
                    self._drop(before, sequence)
            sequence.kept.append(_Kept(end, slot, state_hash))

    def _is_unread(self, kept: _Kept, sequence_id: str) -> bool:
        """Whether no other sequence reads a state that this one has kept."""
        return self._pool.find(kept.state_hash) == kept.slot and not ({*self._pool.holders(kept.slot)} - {sequence_id})

    def _drop(self, kept: _Kept, sequence: _Sequence) -> None:
        if self._pool.find(kept.state_hash) == kept.slot:
            self._pool.uncache_block(kept.slot)
        sequence.kept.remove(kept)
