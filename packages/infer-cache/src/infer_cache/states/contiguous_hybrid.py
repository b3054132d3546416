"""`ContiguousHybridManager`: a contiguous cache for a model with states. No state is kept, as no block is shared."""

from collections.abc import Iterable, Mapping, Sequence

from infer_cache.contiguous_manager import ContiguousKVCacheManager
from infer_cache.leaks import LeakedBlock
from infer_cache.paged_manager import PrefixHit, TableEdit
from infer_cache.states.sequence_states import StateCounts, StateMove
from infer_cache.states.state_slots import StateSlots


class ContiguousHybridManager(ContiguousKVCacheManager):
    """Slots of consecutive blocks and slots of states. Implements `SequenceStates` too."""

    __slots__ = ("_state_slots",)

    def __init__(self, num_slots: int, blocks_per_slot: int, block_size: int, *, states: StateSlots) -> None:
        """Start with free slots; `states` are those of the states, others as for `ContiguousKVCacheManager`."""
        super().__init__(num_slots, blocks_per_slot, block_size)
        self._state_slots = states

    @property
    def states(self) -> "ContiguousHybridManager":
        """The states of its sequences."""
        return self

    @property
    def counts(self) -> StateCounts:
        """The number of slots of states, and what they hold."""
        return self._state_slots.counts

    @property
    def is_repeatable(self) -> bool:
        """Whether a step can be computed again, as none overwrites a state."""
        return self._state_slots.is_repeatable

    def fits(self, num_tokens: int, hit: PrefixHit) -> bool:
        """Return whether slots for a sequence's tokens and for its states are free."""
        return self._state_slots.can_open() and super().fits(num_tokens, hit)

    def admit(self, sequence_id: str, num_tokens: int, hit: PrefixHit) -> list[TableEdit]:
        """Give a sequence a slot, and slots of states; as for `ContiguousKVCacheManager.admit`."""
        edits = super().admit(sequence_id, num_tokens, hit)
        self._state_slots.open(sequence_id)
        return edits

    def release(self, sequence_id: str) -> None:
        """Free a sequence's slots; as for `ContiguousKVCacheManager.release`."""
        super().release(sequence_id)
        self._state_slots.close(sequence_id)

    def audit(self) -> list[LeakedBlock]:
        """Return the blocks of leaked slots, and the leaked slots of states as blocks of another group."""
        return super().audit() + self._state_slots.audit(group=1)

    def reclaim(self) -> int:
        """Free what `audit` finds and return how many blocks and slots of states that is."""
        return super().reclaim() + self._state_slots.reclaim()

    def keep(self, sequence_id: str, positions: Sequence[int]) -> None:
        """Keep nothing."""

    def chunk_end(self, sequence_id: str, start: int, end: int) -> int:
        """Return `end`."""
        del sequence_id, start
        return end

    def move(self, chunks: Iterable[tuple[str, int, int]]) -> Mapping[str, StateMove]:
        """Return the slots of each sequence in a step that computes its tokens from `start` to `end`."""
        return self._state_slots.move(chunks)

    def move_drafts(self, sequence_id: str, most: int) -> Sequence[StateMove]:
        """Return the slots of a step and of up to `most` draft tokens; as `SequenceStates.move_drafts`."""
        return self._state_slots.move_drafts(sequence_id, most)

    def release_drafts(self, sequence_id: str, num_tokens: int) -> None:
        """Take back the slots of draft tokens; as `SequenceStates.release_drafts`."""
        self._state_slots.release_drafts(sequence_id, num_tokens)

    def require_repeatable(self, *, is_repeatable: bool) -> None:
        """Let no step write the state that it reads, or let steps overwrite states; as for `SequenceStates`."""
        self._state_slots.is_repeatable = is_repeatable
