"""`Speculator`: which drafts the decodes of a step get."""

from collections.abc import Callable, Sequence
from typing import Protocol

from infer_engine.request import Request
from infer_engine.speculation.drafts import DraftRow

_LIMITS = ((1, 4), (3, 3), (7, 2))
"""Most drafts of a request, by the most decodes in a step; none in larger steps."""
LEAST_ACCEPTED = 0.3
"""Share of drafts below which a request gets none, but for a probe now and then."""
PROBE_EVERY = 32
"""Tokens between two probes."""
_WEIGHT = 0.2


class Proposer(Protocol):
    """Guesses the next tokens of one sequence."""

    def propose(self, token_ids: Sequence[int], limit: int, /) -> list[int]:
        """Return up to `limit` tokens that may follow."""


class _Sequence:
    """What is known of a request's drafts."""

    __slots__ = ("accepted", "last_probe", "num_drafted", "num_tokens", "proposer")

    def __init__(self, proposer: Proposer) -> None:
        self.proposer = proposer
        self.accepted = 1.0
        self.last_probe = 0
        self.num_drafted = 0
        self.num_tokens = 0


class Speculator:
    """Proposes drafts for requests, and stops where they are not accepted."""

    def __init__(self, make_proposer: Callable[[], Proposer], *, block_size: int, max_rows: int) -> None:
        """Add drafts up to `max_rows` rows of a step; drafts of a request stay within its last block."""
        self._make_proposer = make_proposer
        self._block_size = block_size
        self._max_rows = max_rows
        self._sequences: dict[str, _Sequence] = {}
        self.num_drafts = self.num_accepted = 0

    def with_drafts(self, decodes: list[Request]) -> list[Request | DraftRow]:
        """Return the rows of a step: each of `decodes`, and behind it those of its drafts."""
        limit = next((drafts for most, drafts in _LIMITS if len(decodes) <= most), 0)
        rows: list[Request | DraftRow] = []
        left = self._max_rows - len(decodes)
        for request in decodes:
            rows.append(request)
            if limit and left:
                drafts = self._propose(request, min(limit, left))
                rows += [DraftRow(request, drafts[:count]) for count in range(1, len(drafts) + 1)]
                left -= len(drafts)
        return rows

    def end(self, request_id: str) -> None:
        """Forget a request."""
        self._sequences.pop(request_id, None)

    def _propose(self, request: Request, limit: int) -> list[int]:
        sequence = self._sequences.get(request.request_id)
        if sequence is None:
            sequence = self._sequences[request.request_id] = _Sequence(self._make_proposer())
        num_tokens = len(request.token_ids)
        if sequence.num_drafted:
            share = (num_tokens - sequence.num_tokens - 1) / sequence.num_drafted
            self.num_accepted += num_tokens - sequence.num_tokens - 1
            sequence.accepted += _WEIGHT * (share - sequence.accepted)
        sequence.num_drafted = 0
        if not _takes_drafts(request):
            return []
        if sequence.accepted < LEAST_ACCEPTED and num_tokens - sequence.last_probe < PROBE_EVERY:
            return []
        # Rows are stored in blocks that the request has, and no block is cached in the midst of a step.
        room = min(request.capacity, -(-num_tokens // self._block_size) * self._block_size) - num_tokens
        drafts = sequence.proposer.propose(request.token_ids, max(0, min(limit, room, request.max_length - num_tokens - 1)))
        if drafts:
            sequence.num_drafted, sequence.num_tokens, sequence.last_probe = len(drafts), num_tokens, num_tokens
            self.num_drafts += len(drafts)
        return drafts


def _takes_drafts(request: Request) -> bool:
    params = request.sampling
    has_penalty = (params.repetition_penalty, params.presence_penalty, params.frequency_penalty) != (1.0, 0.0, 0.0)
    edits = params.logit_bias or params.min_tokens or request.banned_sequences
    return request.constraint is None and not has_penalty and not edits and params.logprobs is None
