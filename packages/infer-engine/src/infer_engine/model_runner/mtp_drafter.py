"""`MTPDrafter`: drafts tokens by the layer of a model that predicts one token further (multi-token prediction).

    step       computes        t0 ... t5                    chooses t6
    absorb     the layer       hidden 0 ... 5, t1 ... t6    its keys and values 0 ... 5, and what comes behind t6
    draft      the LM head     d7;  the layer again (d7)    d8, d9, ...

The layer has keys and values of its own, in blocks with the numbers of the model's. So the blocks of a cached prefix
hold both, but for the last token of a block: its next token may be another. Drafts store theirs too, which the next
step overwrites. What it has not seen, as where many requests ran or a step was repeated in parts, costs right drafts
and nothing else.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate

import torch
from torch import Tensor

from infer_cache.paged_manager import TableEdit
from infer_engine.model_runner.inputs.cache_views import CacheViews
from infer_engine.model_runner.inputs.input_buffers import InputBuffers
from infer_engine.model_runner.loading.dummy_requests import GREEDY, dummy_request
from infer_engine.model_runner.runner import ModelRunner
from infer_engine.protocol import SamplingParams
from infer_engine.request import Request, RequestState, StepRow
from infer_engine.sampling.sampler import Sampler
from infer_engine.scheduling import Schedule
from infer_engine.speculation.drafts import DraftRow, FixedMask, JoinedTokens
from infer_engine.speculation.proposals import Proposal, Source
from infer_models import CausalLM


@dataclass(frozen=True, slots=True)
class _Predicted:
    """A request as the layer sees it.

    Attributes:
        request: the request.
        num_tokens: tokens that it had.
        hidden: [1, hidden], what the LM head reads of the token behind them.
    """

    request: Request
    num_tokens: int
    hidden: Tensor


class MTPDrafter:
    """A model's MTP layer with its keys and values. Implements `DraftLayer`."""

    def __init__(
        self,
        model: CausalLM,
        runner: ModelRunner,
        *,
        input_buffers: InputBuffers,
        views: CacheViews,
        sampler: Sampler,
        dtype: torch.dtype,
    ) -> None:
        """Draft for the requests of `runner`, which computes `model` in `dtype` and must keep its hidden states.

        `input_buffers`, `views` and `sampler` are those of this layer alone.
        """
        self._model = model
        self._runner = runner
        self._input_buffers = input_buffers
        self._views = views
        self._sampler = sampler
        self._dtype = dtype
        self._edits: dict[tuple[int, int, int], int] = {}  # blocks by row, group and column, not in the tables yet
        self._predicted: dict[str, _Predicted] = {}
        self._drafted: dict[str, list[int]] = {}  # by request, for the step that is being prepared

    @property
    def cost(self) -> float:
        """Share of a step that one draft takes: the layer and the LM head among the model's weights."""
        model, config = self._model, self._model.config
        return (model.num_mtp_parameters + config.vocab_size * config.hidden_size) / model.num_parameters

    def follow(self, schedule: Schedule) -> None:
        """Take over the block tables of `schedule`, whose decodes may then get drafts."""
        self._drafted.clear()
        for row, edit in schedule.table_edits:
            for column, block_id in enumerate(edit.block_ids, edit.column):
                self._edits[row, edit.group, column] = block_id

    @torch.inference_mode()
    def absorb(self, schedule: Schedule) -> None:
        """Compute the layer for what `schedule` has computed; the tokens that it gave are known."""
        running = self._predicted.values()
        self._predicted = {each.request.request_id: each for each in running if each.request.row >= 0}
        hidden = self._runner.take_hidden(schedule)
        if hidden is None:
            return
        rows, firsts = _rows_of(schedule)
        if not rows:
            return
        counts = [len(row.token_ids) - row.num_computed_tokens for row in rows]
        indices = torch.cat([torch.arange(first, first + count) for first, count in zip(firsts, counts, strict=True)])
        predicted = self._compute(rows, counts, hidden.index_select(0, indices.to(hidden.device)))
        requests = {request.request_id: request for request, _ in schedule.items}
        for row, of_row in zip(rows, _last_rows(predicted, counts), strict=True):
            request = requests[row.request_id]
            if request.state is RequestState.DECODE and request.num_computed_tokens == len(request.token_ids) - 1:
                self._predicted[row.request_id] = _Predicted(request, len(request.token_ids), of_row)

    def proposer(self, request: Request) -> "MTPProposer":
        """Return what drafts for `request`."""
        return MTPProposer(self, request)

    def draft(self, request: Request, limit: int) -> list[int]:
        """Return up to `limit` tokens behind those of `request`: as far as its blocks reach."""
        if request.request_id not in self._drafted:
            self.draft_together([(request, limit)])
        return self._drafted.pop(request.request_id)[:limit]

    @torch.inference_mode()
    def draft_together(self, wanted: Sequence[tuple[Request, int]]) -> None:
        """Draft for requests of one step together, each up to so many tokens: one pass for each place behind them."""
        self._drafted.update({request.request_id: [] for request, _ in wanted})
        left = [(request, min(limit, 2 + request.capacity - len(request.token_ids))) for request, limit in wanted]
        left = [(request, limit) for request, limit in left if limit > 0 and self._knows(request)]
        hidden = torch.cat([self._predicted[each.request_id].hidden for each, _ in left]) if left else torch.empty(0)
        while left:
            chosen = self._draw(hidden, [(request, self._drafted[request.request_id]) for request, _ in left])
            for (request, _), token_id in zip(left, chosen, strict=True):
                self._drafted[request.request_id].append(token_id)
            going_on = [
                number for number, (each, most) in enumerate(left) if len(self._drafted[each.request_id]) < most
            ]
            left = [left[number] for number in going_on]
            if left:
                hidden = hidden.index_select(0, torch.tensor(going_on, device=hidden.device))
                hidden = self._compute([self._behind(request) for request, _ in left], [1] * len(left), hidden)

    def _knows(self, request: Request) -> bool:
        """Whether the layer has seen the last token of `request`."""
        known = self._predicted.get(request.request_id)
        return known is not None and known.num_tokens == len(request.token_ids)

    def _behind(self, request: Request) -> StepRow:
        """Return the layer's row of the last draft of `request`."""
        drafts = self._drafted[request.request_id]
        return _layer_row(request, len(request.token_ids) - 2 + len(drafts), drafts[-1:])

    @torch.inference_mode()
    def compute_made_up(
        self, counts: Sequence[int], params: SamplingParams = GREEDY, *, start: int = 0, first_row: int = 0
    ) -> None:
        """Compute the layer for so many tokens of requests that nobody sent, and draft two of each by `params`.

        They are those from position `start` on, and overwrite the first block. The requests' rows of the block tables
        are those from `first_row` on.
        """
        requests = [dummy_request([0] * count, params=params, row=row) for row, count in enumerate(counts, first_row)]
        rows = [_layer_row(request, start, [0] * count) for request, count in zip(requests, counts, strict=True)]
        predicted = self._compute(rows, list(counts))
        hidden = torch.cat(list(_last_rows(predicted, counts)))
        drafts = self._draw(hidden, [(request, []) for request in requests])
        self._draw(hidden, [(request, [draft]) for request, draft in zip(requests, drafts, strict=True)])

    def _draw(self, hidden: Tensor, drafted: Sequence[tuple[Request, list[int]]]) -> list[int]:
        """Return what each request would draw behind its drafts, by its own random numbers."""
        rows = [
            DraftRow(request, drafts.copy(), constraint=None if request.constraint is None else FixedMask(None))
            if drafts
            else request
            for request, drafts in drafted
        ]
        return self._sampler.launch(self._model.logits(hidden), rows).wait().token_ids

    def _compute(self, rows: Sequence[StepRow], counts: list[int], hidden: Tensor | None = None) -> Tensor:
        """Return what the LM head reads of the tokens behind those of `rows`, [tokens, hidden]; None: zeros."""
        edits = [(row, TableEdit(group, column, [block])) for (row, group, column), block in self._edits.items()]
        self._edits = {}
        batch = self._input_buffers.build(list(zip(rows, counts, strict=True)), edits)
        if hidden is None:
            hidden = batch.input_ids.new_zeros(sum(counts), self._model.config.hidden_size, dtype=self._dtype)
        return self._model.predict_further(batch.input_ids, hidden, batch.position_ids, self._views.view(batch))


class MTPProposer:
    """Proposes for one request. Implements `Proposer`."""

    __slots__ = ("_drafter", "_request")

    def __init__(self, drafter: MTPDrafter, request: Request) -> None:
        """Draft for `request` by `drafter`."""
        self._drafter = drafter
        self._request = request

    def propose(self, token_ids: Sequence[int], limit: int) -> Proposal:
        """Return up to `limit` tokens."""
        del token_ids  # those of the request
        return Proposal(self._drafter.draft(self._request, limit), Source.DRAFT_MODEL)


def _rows_of(schedule: Schedule) -> tuple[list[StepRow], list[int]]:
    """Return what each running request has computed in `schedule`, and the first of its rows of hidden states.

    Of a request with drafts these are its own row and those of the drafts that it took, which follow.
    """
    rows: list[StepRow] = []
    firsts: list[int] = []
    for request, first, start in _computed(schedule):
        next_tokens = list(request.token_ids[start + 1 : request.num_computed_tokens + 1])
        if request.row >= 0 and next_tokens:  # else it has ended, or was preempted
            rows.append(_layer_row(request, start, next_tokens))
            firsts.append(first)
    return rows, firsts


def _last_rows(predicted: Tensor, counts: Sequence[int]) -> Sequence[Tensor]:
    """Return a copy of the last of each of `counts` rows of `predicted`, [1, hidden], without the memory of others."""
    ends = torch.tensor(counts).cumsum(0) - 1
    return torch.split(predicted.index_select(0, ends.to(predicted.device)), 1)


def _layer_row(request: StepRow, first: int, next_tokens: list[int]) -> StepRow:
    """Return the row of positions of a request from `first` on, with the tokens behind them, which alone are read."""
    return StepRow(
        request.submission,
        JoinedTokens(range(first), next_tokens),
        arrival=request.arrival,
        state=RequestState.PREFILL,
        row=request.row,
        num_computed_tokens=first,
        num_reused_tokens=request.num_reused_tokens,
    )


def _computed(schedule: Schedule) -> Iterator[tuple[StepRow, int, int]]:
    """Yield each request with the first of its rows of hidden states, and the position of that row."""
    if schedule.decodes is None:
        counts = [count for _, count in schedule.items]
        for (request, count), end in zip(schedule.items, accumulate(counts), strict=True):
            yield request, end - count, request.num_computed_tokens - count
        return
    behind = [*schedule.decodes[1:], None]
    for first, (row, draft) in enumerate(zip(schedule.decodes, behind, strict=True)):
        if not row.drafts:
            start = (draft if draft is not None and draft.drafts else row).num_computed_tokens - 1
            yield row, first, start
