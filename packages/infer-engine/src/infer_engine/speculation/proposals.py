"""Sources of a sequence's next tokens, as a `Speculator` asks for them."""

from collections.abc import Sequence
from enum import Enum
from typing import TYPE_CHECKING, NamedTuple, Protocol

if TYPE_CHECKING:
    from infer_engine.request import Request
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

    def follow(self, schedule: "Schedule", /) -> None:
        """Take over the block tables of a schedule, before tokens are drafted for it or a later one."""

    def draft_together(self, wanted: "Sequence[tuple[Request, int]]", /) -> None:
        """Draft for requests of one step together, each up to so many tokens, which its proposer returns then."""

    def absorb(self, schedule: "Schedule", /) -> None:
        """Compute the layer for the latest schedule, which is computed; the tokens that it gave are known."""
