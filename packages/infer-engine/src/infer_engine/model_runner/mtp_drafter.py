"""`MTPDrafter`: drafts tokens by the layer of a model that predicts one token further (multi-token prediction).

    step       computes        t0 ... t5                    chooses t6
    absorb     the layer       hidden 0 ... 5, t1 ... t6    its keys and values 0 ... 5, and what comes behind t6
    draft      the LM head     d7;  the layer again (d7)    d8, d9, ...

The layer has keys and values of its own, in blocks with the numbers of the model's. So the blocks of a cached prefix
hold both, but for the last token of a block: its next token may be another. Drafts store theirs too, which the next
step overwrites. What it has not seen, as after a step that was repeated in parts, costs right drafts and nothing else.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate

import torch
from torch import Tensor

from infer_engine.model_runner.inputs.cache_views import CacheViews
from infer_engine.model_runner.inputs.input_buffers import InputBuffers
from infer_engine.model_runner.runner import ModelRunner
from infer_engine.request import Request, RequestState, StepRow
from infer_engine.sampling.sampler import Sampler
from infer_engine.scheduling import RowEdit, Schedule
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
    ) -> None:
        """Draft for the requests of `runner`, which computes `model` and must keep its hidden states.

        `input_buffers`, `views` and `sampler` are those of this layer alone.
        """
        self._model = model
        self._runner = runner
        self._input_buffers = input_buffers
        self._views = views
        self._sampler = sampler
        self._edits: list[RowEdit] = []
        self._predicted: dict[str, _Predicted] = {}

    @property
    def cost(self) -> float:
        """Share of a step that one draft takes: the layer and the LM head among the model's weights."""
        model, config = self._model, self._model.config
        return (model.num_mtp_parameters + config.vocab_size * config.hidden_size) / model.num_parameters

    def prepare(self, schedule: Schedule) -> None:
        """Take over the block tables of `schedule`, whose decodes may then get drafts."""
        self._edits += schedule.table_edits

    @torch.inference_mode()
    def absorb(self, schedule: Schedule) -> None:
        """Compute the layer for what `schedule` has computed; the tokens that it gave are known."""
        self._edits += schedule.table_edits  # those for drafts came after `prepare`; the others change nothing again
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
        ends = torch.tensor(counts).cumsum(0).tolist()
        requests = {request.request_id: request for request, _ in schedule.items}
        for row, end in zip(rows, ends, strict=True):
            request = requests[row.request_id]
            if request.state is RequestState.DECODE and request.num_computed_tokens == len(request.token_ids) - 1:
                self._predicted[row.request_id] = _Predicted(
                    request, len(request.token_ids), predicted[end - 1 : end].clone()
                )

    def proposer(self, request: Request) -> "MTPProposer":
        """Return what drafts for `request`."""
        return MTPProposer(self, request)

    @torch.inference_mode()
    def draft(self, request: Request, limit: int) -> list[int]:
        """Return up to `limit` tokens behind those of `request`: as far as its blocks reach."""
        known = self._predicted.get(request.request_id)
        num_tokens = len(request.token_ids)
        if known is None or known.num_tokens != num_tokens:
            return []
        hidden = known.hidden
        drafts: list[int] = []
        limit = min(limit, 1 + request.capacity - (num_tokens - 1))
        while len(drafts) < limit:
            if drafts:
                row = _layer_row(request, num_tokens - 2 + len(drafts), drafts[-1:])
                hidden = self._compute([row], [1], hidden)
            drafts.append(self._draw(hidden, request, drafts))
        return drafts

    def _draw(self, hidden: Tensor, request: Request, drafts: list[int]) -> int:
        """Return what `request` would draw behind `drafts`, by its own random numbers."""
        row: StepRow = request
        if drafts:
            constraint = None if request.constraint is None else FixedMask(None)
            row = DraftRow(request, drafts.copy(), constraint=constraint)
        return self._sampler.launch(self._model.logits(hidden), [row]).wait().token_ids[0]

    def _compute(self, rows: Sequence[StepRow], counts: list[int], hidden: Tensor) -> Tensor:
        """Return what the LM head reads of the tokens behind those of `rows`, [tokens, hidden]."""
        edits, self._edits = self._edits, []
        batch = self._input_buffers.build(list(zip(rows, counts, strict=True)), edits)
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
