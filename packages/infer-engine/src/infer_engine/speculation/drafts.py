"""`DraftRow`: a request as it is after some drafts, for one row of a step."""

from collections.abc import Sequence

from infer_engine.request import Request, RequestState


class DraftedTokens(Sequence[int]):
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

    def __getitem__(self, index):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN204 - as in `list`
        """Return a token, or a list of those in a slice."""
        if isinstance(index, slice):
            return [self[each] for each in range(*index.indices(len(self)))]
        if index < 0:
            index += len(self)
        return self._known[index] if index < self._length else self._drafts[index - self._length]


class DraftRow:
    """What a step reads of a request, as it would be after `drafts`. Ends with the step.

    Attributes:
        request: the request.
        draft: the last of the drafts, whose position this row computes.
    """

    __slots__ = ("arrival", "constraint", "draft", "max_length", "num_completion_tokens", "num_computed_tokens",
                 "num_prompt_tokens", "pending_row", "request", "request_id", "row", "sampling", "seed", "state",
                 "token_ids")  # fmt: skip

    def __init__(self, request: Request, drafts: list[int]) -> None:
        """Make the row of `request` after at least one of `drafts`."""
        self.request = request
        self.draft = drafts[-1]
        self.token_ids = DraftedTokens(request.token_ids, drafts)
        self.num_computed_tokens = request.num_computed_tokens + len(drafts)
        self.num_completion_tokens = request.num_completion_tokens + len(drafts)
        self.request_id = request.request_id
        self.arrival = request.arrival
        self.row = request.row
        self.max_length = request.max_length
        self.num_prompt_tokens = request.num_prompt_tokens
        self.sampling = request.sampling
        self.seed = request.seed
        self.constraint = request.constraint
        self.state = RequestState.DECODE
        self.pending_row = -1

    @property
    def is_accepted(self) -> bool:
        """Whether the request has taken the drafts of this row, and no token more."""
        tokens = self.request.token_ids
        return not self.request.has_ended and len(tokens) == len(self.token_ids) and tokens[-1] == self.draft
