"""What drafts the next tokens of a sequence, as a `Speculator` asks for them."""

from collections.abc import Sequence
from enum import Enum
from typing import NamedTuple, Protocol


class Source(Enum):
    """Where drafts come from. Drafts of each source are accepted more or less often."""

    SHORT_MATCH = "short match"
    LONG_MATCH = "long match"
    PREDICTION = "prediction"
    GRAMMAR = "grammar"
    DRAFT_MODEL = "draft model"


class Proposal(NamedTuple):
    """Draft tokens, which may be none, and their source."""

    token_ids: list[int]
    source: Source = Source.SHORT_MATCH


class Proposer(Protocol):
    """Drafts the next tokens of one sequence, which grows from call to call."""

    def propose(self, token_ids: Sequence[int], limit: int, /) -> Proposal:
        """Return up to `limit` tokens that may follow `token_ids`, which begin with those of the last call."""
