"""`DraftedSequence`: a request that may get drafts, and how many of them were right."""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple

from infer_engine.protocol.stats import NO_DRAFTS
from infer_engine.request import Request
from infer_engine.speculation.acceptance_rate import AcceptanceRate
from infer_engine.speculation.draft_costs import ON_CPU, DraftCosts
from infer_engine.speculation.drafts import DraftRow, FixedMask
from infer_engine.speculation.proposals import Proposal, Proposer, Source
from infer_engine.structured.errors import GrammarError

if TYPE_CHECKING:
    from infer_cache.states.sequence_states import StateMove
    from infer_engine.structured.bitmasks import Bitmask

_EXPECTED = {
    Source.SHORT_MATCH: 0.4,
    Source.LONG_MATCH: 0.8,
    Source.PREDICTION: 0.9,
    Source.GRAMMAR: 0.9,
    Source.DRAFT_MODEL: 0.7,
}
_SHORTEST_WAIT, _LONGEST_WAIT = 32, 512
"""Tokens after which drafts of a source that do not pay are tried again: twice as many after each try in vain."""
_PROBE = 2
"""Drafts of such a try."""


class _Draft(NamedTuple):
    """A draft token, and the tokens that the request's constraint allows behind it; without a constraint None."""

    token_id: int
    allowed_behind: "Bitmask | None"


class DraftedSequence:
    """Drafts the tokens of one request, and counts which of them it takes.

    Attributes:
        request: the request.
    """

    __slots__ = (
        "_costs",
        "_draft_model_cost",
        "_last_drafts",
        "_num_accepted",
        "_num_drafts",
        "_on_accepted",
        "_proposer",
        "_rates",
        "_source",
        "_waits",
        "request",
    )

    def __init__(
        self,
        request: Request,
        proposer: Proposer,
        *,
        on_accepted: Callable[[Request, int], None],
        costs: DraftCosts = ON_CPU,
        draft_model_cost: float | None = None,
    ) -> None:
        """Draft what `proposer` and the grammar of `request` propose, as far as it pays by `costs`.

        `on_accepted` is called with the request for each draft that it takes, and the draft's number in its step. If
        `proposer` is a model, `draft_model_cost` is the share of a step that one of its own takes.
        """
        self.request = request
        self._proposer = proposer
        self._on_accepted = on_accepted
        self._costs = costs
        self._draft_model_cost = draft_model_cost
        self._rates = {source: AcceptanceRate(right) for source, right in _EXPECTED.items()}
        self._last_drafts = dict.fromkeys(Source, 0)  # how long the request was when it got some
        self._waits = dict.fromkeys(Source, _SHORTEST_WAIT)
        self._source = Source.SHORT_MATCH  # of the drafts of the latest step
        self._num_drafts = self._num_accepted = 0  # of that step

    def settle(self) -> None:
        """Note how many drafts of the latest step were right."""
        if self._num_drafts:
            self._rates[self._source].note(self._num_accepted, self._num_drafts)
            wait = _SHORTEST_WAIT if self._num_accepted else min(_LONGEST_WAIT, 2 * self._waits[self._source])
            self._waits[self._source] = wait
        self._num_drafts = self._num_accepted = 0

    def draft(self, limit: int) -> list[_Draft]:
        """Return up to `limit` drafts: as many as are worth their rows."""
        constraint = self.request.constraint
        forced = [] if constraint is None else constraint.forced()
        proposal = Proposal(forced, Source.GRAMMAR) if forced else self._propose(limit)
        if not proposal.token_ids:
            return []
        source = self._source = proposal.source
        best = self._best_count(source, limit)
        if not best:
            return []
        self._last_drafts[source] = len(self.request.token_ids)
        drafts = proposal.token_ids[:best]
        return [_Draft(token_id, None) for token_id in drafts] if constraint is None else self._allowed(drafts, best)

    def most_computed(self, limit: int) -> int:
        """Return how many drafts, up to `limit`, a model is to compute: each costs time, so no more than are wanted."""
        return self._best_count(Source.DRAFT_MODEL, limit)

    def _propose(self, limit: int) -> Proposal:
        if self._draft_model_cost is not None:
            limit = self.most_computed(limit)
        return self._proposer.propose(self.request.token_ids, limit)

    def _best_count(self, source: Source, limit: int) -> int:
        """Return how many drafts of `source`, up to `limit`, are worth their cost, or are tried once again."""
        num_tokens = len(self.request.token_ids)
        cost = self._costs.of_row(num_tokens)
        if source is Source.DRAFT_MODEL:
            cost += self._draft_model_cost or 0.0
        best = self._rates[source].best_count(limit, cost=cost)
        is_due = cost < 1 and num_tokens - self._last_drafts[source] >= self._waits[source]
        return best or (min(_PROBE, limit) if is_due else 0)

    def rows(self, drafts: list[_Draft], state_moves: "Sequence[StateMove]") -> list[DraftRow]:
        """Return the rows of the first of the drafts that `draft` has returned, with the slots of their states."""
        drafts = drafts[: len(state_moves)]
        self._num_drafts = len(drafts)
        has_constraint = self.request.constraint is not None
        token_ids = [draft.token_id for draft in drafts]
        self._count(drafted=len(drafts))
        return [
            DraftRow(
                self.request,
                token_ids[:count],
                constraint=FixedMask(draft.allowed_behind) if has_constraint else None,
                state_move=state_move,
                on_accepted=self._accept,
            )
            for count, (draft, state_move) in enumerate(zip(drafts, state_moves, strict=True), 1)
        ]

    def _allowed(self, drafts: list[int], most: int) -> list[_Draft]:
        """Return the drafts that the constraint allows, and up to `most` with those that it forces behind them.

        A draft that completes the text is left out: nothing comes behind it.
        """
        from infer_engine.structured.bitmasks import holds  # noqa: PLC0415 - numpy: only where there are masks

        assert self.request.constraint is not None
        kept: list[_Draft] = []
        try:
            mask = self.request.constraint.mask()
            behind = self.request.constraint.fork()
            while drafts and (mask is None or holds(mask, drafts[0])):
                behind.consume(drafts[0])
                if behind.is_over:
                    break
                mask = behind.mask()
                kept.append(_Draft(drafts[0], mask))
                drafts = drafts[1:] or behind.forced()[: most - len(kept)]
        except GrammarError:  # where a step reaches it, the request fails
            pass
        return kept

    def _accept(self, position: int) -> None:
        self._num_accepted += 1
        self._count(accepted=1)
        self._on_accepted(self.request, position)

    def _count(self, *, drafted: int = 0, accepted: int = 0) -> None:
        are_predicted = self._source is Source.PREDICTION
        self.request.draft_counts = (self.request.draft_counts or NO_DRAFTS).plus(
            drafted=drafted, accepted=accepted, are_predicted=are_predicted
        )
