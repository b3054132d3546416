"""`Speculator`: which drafts the decodes of a step get."""

import logging
from collections.abc import Callable, Sequence

from infer_engine.protocol.stats import StepCounts
from infer_engine.request import Request, RequestState, StepRow
from infer_engine.scheduling import BaseScheduler, Schedule
from infer_engine.speculation.draft_costs import ON_CPU, DraftCosts
from infer_engine.speculation.drafted_sequence import DraftedSequence
from infer_engine.speculation.drafts import DraftRow
from infer_engine.speculation.proposals import DraftLayer, Proposer

logger = logging.getLogger(__name__)

_MOST_IN_VAIN, _WAIT = 4, 32
"""Where steps are scheduled ahead: steps without drafts, and after them steps that wait for none."""
MakeProposer = Callable[[Request], Proposer]


class Speculator:
    """Adds drafts to steps of decodes, and stops where they are wrong."""

    def __init__(
        self,
        make_proposer: MakeProposer,
        scheduler: BaseScheduler,
        counts: StepCounts,
        *,
        num_tokens: int,
        max_rows: int,
        costs: DraftCosts = ON_CPU,
        on_ended: Callable[[Request], None] = lambda _: None,
        draft_model_cost: float | None = None,
        draft_layer: DraftLayer | None = None,
    ) -> None:
        """Add up to `num_tokens` drafts of a request, up to `max_rows` rows of a step, and count them in `counts`.

        They are as many as pay by `costs`.

        `scheduler` has the requests. `on_ended` is called with each request that had a proposer, after its end.
        `draft_model_cost`: as for `DraftedSequence`. `draft_layer` computes what steps of few requests compute.
        """
        self._make_proposer = make_proposer
        self._scheduler = scheduler
        self._counts = counts
        self._num_tokens = num_tokens
        self._max_rows = max_rows
        self._costs = costs
        self._on_ended = on_ended
        self._draft_model_cost = draft_model_cost
        self._draft_layer = draft_layer
        self._sequences: dict[str, DraftedSequence] = {}
        self._absorbs = False  # the latest step
        self._num_in_vain = 0  # latest steps without drafts, and then those since that were not to get any

    def may_draft(self) -> bool:
        """Whether the next step may get drafts, which go on from known tokens: not after some that got none.

        With a layer that drafts, whether it is to see what the step computes.
        """
        scheduler, decode = self._scheduler, RequestState.DECODE
        if self._draft_layer is not None:
            return self._has_few_requests()
        if scheduler.num_waiting or not 0 < scheduler.num_running <= self._costs.most_decodes:
            return False
        requests = tuple(scheduler.requests())
        if any(request.state is not decode for request in requests):
            return False
        if any(request.request_id not in self._sequences for request in requests):  # a new one
            self._num_in_vain = 0
        if self._num_in_vain < _MOST_IN_VAIN:
            return True
        self._num_in_vain = (self._num_in_vain + 1) % (_MOST_IN_VAIN + _WAIT)
        return False

    def add_drafts(self, schedule: Schedule) -> None:
        """Add the rows of drafts behind each decode, if the step computes nothing else; none if that fails."""
        try:
            self._add_drafts(schedule)
        except Exception:
            logger.exception("Speculation failed; this step has no draft tokens.")

    def _has_few_requests(self) -> bool:
        return 0 < self._scheduler.num_running + self._scheduler.num_waiting <= self._costs.most_decodes

    def _add_drafts(self, schedule: Schedule) -> None:
        if self._draft_layer is not None:
            self._absorbs = self._has_few_requests()
            self._draft_layer.follow(schedule)
        decode = RequestState.DECODE
        decodes = [request for request, _ in schedule.items if request.state is decode]
        limit = self._costs.most_drafts(len(decodes))
        if len(decodes) < len(schedule.items) or not limit:
            return
        if self._draft_layer is not None:
            plain = [request for request in decodes if request.constraint is None]  # else a grammar may force tokens
            self._draft_layer.draft_together(
                [(each, self._sequence_of(each).most_computed(self._room(each, limit))) for each in plain]
            )
        rows: list[StepRow] = []
        left = self._max_rows - len(decodes)
        for request in decodes:
            drafts = self._rows_of(request, min(self._room(request, limit), left), schedule)
            rows += [request, *drafts]
            left -= len(drafts)
        self._num_in_vain += 1
        if len(rows) > len(decodes):
            schedule.decodes = rows
            self._num_in_vain = 0

    def settle(self, schedule: Schedule) -> None:
        """Note what became of the drafts of `schedule`, which is computed, and forget the requests that have ended."""
        try:
            self._settle()
            if self._draft_layer is not None:
                self._draft_layer.follow(schedule)  # blocks for drafts came after the first time
                if self._absorbs:
                    self._draft_layer.absorb(schedule)
        except Exception:
            logger.exception("Speculation failed; some draft tokens are not counted.")

    def _settle(self) -> None:
        for sequence in self._sequences.values():
            self._scheduler.release_drafts(sequence.request)
            sequence.settle()
        self.forget_ended()

    def pass_over(self, schedule: Schedule) -> None:
        """Note that `schedule` gets no drafts, as the next one is scheduled before it is computed."""
        if self._draft_layer is not None:
            self._draft_layer.follow(schedule)

    def forget_ended(self) -> None:
        """Forget the requests that have ended; what drafts may learn of their answers."""
        for name, sequence in tuple(self._sequences.items()):
            if sequence.request.has_ended:
                del self._sequences[name]
                try:
                    self._on_ended(sequence.request)
                except Exception:
                    logger.exception("Speculation failed; the answer of request %s is not looked for again.", name)

    def _room(self, request: Request, limit: int) -> int:
        """Return how many drafts `request` may get, if it is `limit` in a step of so many decodes."""
        return max(0, min(limit, self._num_tokens, request.max_length - len(request.token_ids) - 1))

    def _sequence_of(self, request: Request) -> DraftedSequence:
        sequence = self._sequences.get(request.request_id)
        if sequence is None or sequence.request is not request:
            sequence = self._sequences[request.request_id] = DraftedSequence(
                request,
                self._make_proposer(request),
                on_accepted=self._accept,
                costs=self._costs,
                draft_model_cost=self._draft_model_cost,
            )
        return sequence

    def _rows_of(self, request: Request, limit: int, schedule: Schedule) -> Sequence[DraftRow]:
        """Return the rows of up to `limit` drafts of `request`."""
        sequence, num_tokens = self._sequence_of(request), len(request.token_ids)
        drafts = sequence.draft(limit)
        if not drafts:
            return ()
        room = self._scheduler.extend_for_drafts(request, num_tokens + len(drafts), schedule) - num_tokens
        rows = sequence.rows(drafts, self._scheduler.move_drafts(request, min(room, len(drafts))))
        self._counts.num_drafts += bool(rows)
        self._counts.num_draft_tokens += len(rows)
        return rows

    def _accept(self, request: Request, position: int) -> None:
        """Count a draft that `request` has taken, which is the block's last token if that is full."""
        self._counts.num_accepted_tokens += 1
        self._counts.num_accepted_by_position[position] += 1
        self._scheduler.cache_computed_block(request)
