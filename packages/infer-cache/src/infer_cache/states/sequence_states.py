"""`SequenceStates`: what a scheduler asks of the states of sequences; `NoStates` for models that have none."""

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple, Protocol


class StateMove(NamedTuple):
    """The slots of a sequence's state in one step.

    Attributes:
        read: the slot of the state before the step's tokens; -1: the sequence begins.
        write: the slot of the state after them; the same one where it is overwritten.
    """

    read: int
    write: int


NO_MOVE = StateMove(-1, -1)
"""The move of a sequence without states."""


class StateCounts(NamedTuple):
    """The number of slots, and what they hold.

    Attributes:
        num_state_slots: all slots.
        num_free_state_slots: slots that no sequence holds, those of kept states included.
        num_kept_states: free slots whose state is kept.
        num_state_evictions: kept states that were evicted for another one, since the start.
    """

    num_state_slots: int = 0
    num_free_state_slots: int = 0
    num_kept_states: int = 0
    num_state_evictions: int = 0


class SequenceStates(Protocol):
    """The states of sequences, as a scheduler sees them."""

    @property
    def counts(self) -> StateCounts:
        """The number of slots, and what they hold."""

    @property
    def is_repeatable(self) -> bool:
        """Whether a step can be computed again, as none overwrites a state."""

    def keep(self, sequence_id: str, positions: Sequence[int]) -> None:
        """Keep the states at the ends of blocks at or before these positions of an admitted sequence's prompt."""

    def chunk_end(self, sequence_id: str, start: int, end: int) -> int:
        """Return where a chunk of a prompt from `start` on, which may reach `end`, ends: a state may be kept there."""

    def move(self, chunks: Iterable[tuple[str, int, int]]) -> Mapping[str, StateMove]:
        """Return the slots of each sequence in a step that computes its tokens from `start` to `end`."""

    def move_drafts(self, sequence_id: str, most: int) -> Sequence[StateMove]:
        """Return the slots of a sequence's latest step, which may have changed, and of up to `most` drafts behind it.

        Each goes on from the state before it. There are fewer where other sequences may need the slots.
        """

    def release_drafts(self, sequence_id: str, num_tokens: int) -> None:
        """Take back the slots of draft tokens behind a sequence's first `num_tokens` tokens, which are computed."""

    def require_repeatable(self, *, is_repeatable: bool) -> None:
        """Let no step write the state that it reads, so that one that fails can be computed again.

        By default steps overwrite states, so that more sequences run. Call it while no sequence is admitted.
        """


class NoStates:
    """The states of a model that has none. Implements `SequenceStates`."""

    counts = StateCounts()
    is_repeatable = True

    def keep(self, sequence_id: str, positions: Sequence[int]) -> None:
        """Keep nothing."""

    def chunk_end(self, sequence_id: str, start: int, end: int) -> int:
        """Return `end`."""
        del sequence_id, start
        return end

    def move(self, chunks: Iterable[tuple[str, int, int]]) -> Mapping[str, StateMove]:
        """Return no moves."""
        del chunks
        return {}

    def move_drafts(self, sequence_id: str, most: int) -> Sequence[StateMove]:
        """Return that of the step and of each draft, which moves nothing."""
        del sequence_id
        return [NO_MOVE] * (1 + most)

    def release_drafts(self, sequence_id: str, num_tokens: int) -> None:
        """Release nothing."""

    def require_repeatable(self, *, is_repeatable: bool) -> None:
        """Do nothing: every step can be computed again."""


NO_STATES = NoStates()
