"""`DraftRow`: a request as it is after some drafts, for one row of a step."""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple, overload

from infer_cache.states.sequence_states import NO_MOVE, StateMove
from infer_engine.request import Request, RequestState, StepRow

if TYPE_CHECKING:
    from infer_engine.structured.bitmasks import Bitmask


class JoinedTokens(Sequence[int]):
    """Some tokens and others after them, which are not copied."""

    __slots__ = ("_after", "_before", "_length")

    def __init__(self, before: Sequence[int], after: list[int]) -> None:
        """View `before`, as long as it is, and `after`."""
        self._before = before
        self._length = len(before)
        self._after = after

    def __len__(self) -> int:
        """Return how many tokens there are."""
        return self._length + len(self._after)

    @overload
    def __getitem__(self, index: int) -> int: ...
    @overload
    def __getitem__(self, index: slice) -> list[int]: ...
    def __getitem__(self, index: int | slice) -> int | list[int]:
        """Return a token, or a list of those in a slice."""
        length = self._length
        if isinstance(index, slice):
            start, stop, step = index.indices(len(self))
            assert step == 1
            of_after = slice(max(0, start - length), max(0, stop - length))
            return [*self._before[start : min(stop, length)], *self._after[of_after]]
        index += len(self) if index < 0 else 0
        return self._before[index] if index < length else self._after[index - length]


class FixedMask(NamedTuple):
    """A constraint of one row of a step alone: the tokens that may come next, or None for all."""

    allowed: "Bitmask | None"

    def mask(self) -> "Bitmask | None":
        """Return them, as `TokenConstraint.mask` does."""
        return self.allowed


class DraftRow(StepRow):
    """A request as it would be after some drafts. It comes behind the row of the request, and ends with the step."""

    __slots__ = ("_on_accepted", "_request", "drafts")

    def __init__(
        self,
        request: Request,
        drafts: list[int],
        *,
        constraint: FixedMask | None = None,
        state_move: StateMove = NO_MOVE,
        on_accepted: Callable[[int], None] = lambda _: None,
    ) -> None:
        """Make the row of `request` after at least one of `drafts`.

        Args:
            request: the request.
            drafts: the drafts.
            constraint: the tokens that may come behind them; None: all.
            state_move: the slots of its state, if the model has states.
            on_accepted: called with the number of drafts before the last, once the request has taken all of them.
        """
        super().__init__(
            request.submission,
            JoinedTokens(request.token_ids, drafts),
            arrival=request.arrival,
            state=RequestState.DECODE,
            row=request.row,
            num_computed_tokens=request.num_computed_tokens + len(drafts),
            num_reused_tokens=request.num_reused_tokens,
            constraint=constraint,
            state_move=state_move,
        )
        self._request = request
        self._on_accepted = on_accepted
        self.drafts = drafts

    def verified(self) -> Request | None:
        """Return the request, with this row's token counted as computed, if it has taken all drafts; else None."""
        request = self._request
        tokens = request.token_ids
        is_right = len(tokens) == len(self.token_ids) and tokens[-1] == self.drafts[-1]
        if not is_right or request.has_ended:
            return None
        request.num_computed_tokens += 1
        self._on_accepted(len(self.drafts) - 1)
        return request
