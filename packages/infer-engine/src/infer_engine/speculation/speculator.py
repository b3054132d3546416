"""`Speculator`: which drafts the decodes of a step get."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Protocol

from infer_engine.protocol.stats import StepCounts
from infer_engine.request import Request, RequestState
from infer_engine.scheduling import Schedule
from infer_engine.speculation.drafts import DraftRow

_LIMITS = ((1, 16), (3, 3), (7, 2))
"""Most drafts of a request, by the most decodes in a step; none in larger steps, whose rows cost more."""
_LEAST_ACCEPTED = 0.3
"""Share of drafts, by a moving average, below which a request gets none but for a probe now and then."""
_PROBE_EVERY = 32
"""Tokens between two probes."""
_WEIGHT = 0.2
"""Weight of the latest step in that average."""


class Proposer(Protocol):
    """Drafts the next tokens of one sequence."""

    def propose(self, token_ids: Sequence[int], limit: int, /) -> list[int]:
        """Return up to `limit` tokens that may follow."""


class _Sequence:
    """A request that may get drafts, and how many of them were right."""

    __slots__ = ("accepted", "last_drafts", "num_drafted", "proposer", "request")

    def __init__(self, request: Request, proposer: Proposer) -> None:
        self.request = request
        self.proposer = proposer
        self.accepted = 1.0
        self.last_drafts = 0  # how many tokens the request had when it got some
        self.num_drafted = 0

    def settle(self) -> None:
        """Note how many of the drafts of the step before were right."""
        share = (len(self.request.token_ids) - self.last_drafts - 1) / self.num_drafted
        self.accepted += _WEIGHT * (share - self.accepted)


class Speculator:
    """Adds drafts to steps of decodes, and stops where they are wrong."""

    def __init__(
        self, make_proposer: Callable[[], Proposer], *, num_tokens: int, block_size: int, max_rows: int
    ) -> None:
        """Add up to `num_tokens` drafts of a request, up to `max_rows` rows of a step."""
        self._make_proposer = make_proposer
        self._num_tokens = num_tokens
        self._block_size = block_size
        self._max_rows = max_rows
        self._sequences: dict[str, _Sequence] = {}
        self._drafted: list[_Sequence] = []  # those that got drafts in the step before

    def add_drafts(self, schedule: Schedule, counts: StepCounts) -> None:
        """Add the rows of drafts behind each decode, if the step computes nothing else, and count them."""
        for sequence in self._drafted:
            sequence.settle()
        self._drafted = []
        decode = RequestState.DECODE
        decodes = schedule.decodes or [request for request, _ in schedule.items if request.state is decode]
        limit = next((drafts for most, drafts in _LIMITS if len(decodes) <= most), 0)
        if len(decodes) < len(schedule.items) or not limit or schedule.state_moves:
            return
        self._forget_ended()
        rows: list[Request] = []
        left = self._max_rows - len(decodes)
        for request in decodes:
            drafts = self._drafts_of(request, min(limit, left, self._num_tokens))
            rows += [request, *(DraftRow(request, drafts[:count]) for count in range(1, len(drafts) + 1))]
            left -= len(drafts)
            counts.num_drafts += bool(drafts)
            counts.num_draft_tokens += len(drafts)
        if len(rows) > len(decodes):
            schedule.decodes = rows

    @staticmethod
    def accepted(chosen: Iterable[tuple[Request, int]], counts: StepCounts) -> Iterator[tuple[Request, int]]:
        """Yield the tokens of a step, in order, without those of rejected drafts; accepted ones are counted.

        The caller appends each token before it asks for the next one.
        """
        for row, token_id in chosen:
            request = row.take() if isinstance(row, DraftRow) else row
            if request is not None:
                counts.num_accepted_tokens += request is not row
                yield request, token_id

    def _drafts_of(self, request: Request, limit: int) -> list[int]:
        if not _may_have_drafts(request):
            return []
        if request.request_id not in self._sequences:
            self._sequences[request.request_id] = _Sequence(request, self._make_proposer())
        sequence = self._sequences[request.request_id]
        num_tokens = len(request.token_ids)
        if sequence.accepted < _LEAST_ACCEPTED and num_tokens - sequence.last_drafts < _PROBE_EVERY:
            return []
        limit = min(limit, max(1, round(sequence.accepted**2 * self._num_tokens)))  # the last of many are seldom right
        # Rows are stored in blocks that the request has. A certain token makes a block full: then it is cached.
        room = min(request.capacity, -(-num_tokens // self._block_size) * self._block_size - 1) - num_tokens
        drafts = sequence.proposer.propose(
            request.token_ids, max(0, min(limit, room, request.max_length - num_tokens - 1))
        )
        if drafts:
            sequence.num_drafted, sequence.last_drafts = len(drafts), num_tokens
            self._drafted.append(sequence)
        return drafts

    def _forget_ended(self) -> None:
        if any(each.request.has_ended for each in self._sequences.values()):
            self._sequences = {name: each for name, each in self._sequences.items() if not each.request.has_ended}


def _may_have_drafts(request: Request) -> bool:
    """Return whether its rows need no more than a draw each: no counts, masks or log-probabilities of their own."""
    params = request.sampling
    has_penalty = (params.repetition_penalty, params.presence_penalty, params.frequency_penalty) != (1.0, 0.0, 0.0)
    has_edits = bool(params.logit_bias or params.min_tokens or request.banned_sequences)
    return request.constraint is None and not has_penalty and not has_edits and params.logprobs is None
