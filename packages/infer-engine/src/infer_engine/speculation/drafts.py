"""`DraftRow`: a request as it is after some drafts, for one row of a step."""

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, overload

from infer_engine.request import Request

if TYPE_CHECKING:
    from infer_cache.states.sequence_states import StateMove
    from infer_engine.structured.bitmasks import Bitmask


class DraftedTokens:
    """The tokens of a request and drafts behind them, which are not copied."""

    __slots__ = ("_drafts", "_known", "_length")

    def __init__(self, known: list[int], drafts: list[int]) -> None:
        """View `known`, as long as it is, and `drafts`."""
        self._known = known
        self._length = len(known)
        self._drafts = drafts

    def __len__(self) -> int:
        """Return how many tokens there are."""
        return self._length + len(self._drafts)

    @overload
    def __getitem__(self, index: int) -> int: ...
    @overload
    def __getitem__(self, index: slice) -> list[int]: ...
    def __getitem__(self, index: int | slice) -> int | list[int]:
        """Return a token, or a list of those in a slice."""
        if isinstance(index, slice):
            return [self[each] for each in range(*index.indices(len(self)))]
        index += len(self) if index < 0 else 0
        return self._known[index] if index < self._length else self._drafts[index - self._length]


class AllowedAfterDrafts:
    """The constraint of a row of drafts: the tokens that the request's own constraint allows behind them."""

    __slots__ = ("_allowed",)

    def __init__(self, allowed: "Bitmask | None") -> None:
        """Allow the tokens of a mask; None allows all."""
        self._allowed = allowed

    def mask(self) -> "Bitmask | None":
        """Return the tokens that may come next, as `TokenConstraint.mask` does."""
        return self._allowed


class DraftRow(Request):
    """A request as it would be after some drafts, with what a step reads of it. It ends with the step.

    It comes behind the row of the request, of which the sampler has read the parameters by then.
    """

    __slots__ = ("_is_rejected", "_on_accepted", "_request", "_state_move", "drafts")

    def __init__(  # all that is read: no call of `Request`'s
        self,
        request: Request,
        drafts: list[int],
        *,
        constraint: AllowedAfterDrafts | None = None,
        state_move: "StateMove | None" = None,
        on_accepted: Callable[[int], None] = lambda _: None,
    ) -> None:
        """Make the row of `request` after at least one of `drafts`.

        Args:
            request: the request.
            drafts: the drafts.
            constraint: the tokens that may come behind them; None: all.
            state_move: the slots of its state; None: the model has none.
            on_accepted: called with the number of drafts before the last, once the request has taken all of them.
        """
        self._request = request
        self._is_rejected = False
        self._on_accepted = on_accepted
        self._state_move = state_move
        self.drafts = drafts
        self.request_id = request.request_id
        self.arrival = request.arrival
        self.row = request.row
        self.max_length = request.max_length
        self.token_ids = DraftedTokens(request.token_ids, drafts)  # type: ignore[assignment]  # as far as it is read
        self.num_prompt_tokens = request.num_prompt_tokens
        self.num_computed_tokens = request.num_computed_tokens + len(drafts)
        self.num_reused_tokens = request.num_reused_tokens
        self.pending_row = -1
        self.constraint = constraint  # type: ignore[assignment]  # its mask is all that a step reads

    def state_move(self, moves: "Mapping[str, StateMove]") -> "StateMove":
        """Return the slots of the state of this row."""
        del moves
        assert self._state_move is not None
        return self._state_move

    def reject(self) -> None:
        """Reject the draft of this row, whatever the request takes."""
        self._is_rejected = True

    def verified(self) -> Request | None:
        """Return the request, with this row's token counted as computed, if it has taken all drafts; else None."""
        request = self._request
        tokens = request.token_ids
        is_right = len(tokens) == len(self.token_ids) and tokens[-1] == self.drafts[-1]
        if not is_right or self._is_rejected or request.has_ended:
            return None
        request.num_computed_tokens += 1
        self._on_accepted(len(self.drafts) - 1)
        return request
