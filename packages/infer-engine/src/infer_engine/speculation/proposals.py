"""Sources of a sequence's next tokens, as a `Speculator` asks for them."""

from collections.abc import Sequence
from enum import Enum
from typing import TYPE_CHECKING, NamedTuple, Protocol

if TYPE_CHECKING:
    from infer_engine.scheduling import Schedule


class Source(Enum):
    """A source of drafts. Drafts of each source are accepted more or less often."""

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


class DraftLayer(Protocol):
    """A layer of the model that drafts, with keys and values of its own."""

    def prepare(self, schedule: "Schedule", /) -> None:
        """Take over the block tables of a schedule, before tokens are drafted for it."""

    def absorb(self, schedule: "Schedule", /) -> None:
        """Compute the layer for what a schedule has computed; the tokens that it gave are known."""
