"""The memory of `ReplicatedCoreClient`: each request and each core."""

from dataclasses import dataclass, field

import msgspec

from infer_engine.ipc.core_client import CoreClient
from infer_engine.messages import Submit, TokenOutput
from infer_engine.protocol import EngineStats
from infer_engine.protocol.stats import NO_DRAFTS, DraftCounts
from infer_engine.replicas.combining import add_counts

MAX_LOSSES = 3
"""After how many lost cores a request fails: it may be what ends them. The last one it shares with no other suspect."""


@dataclass(slots=True)
class TrackedRequest:
    """A request that has not ended; `replica` is None while there is no core for it."""

    submission: Submit
    replica: int | None = None
    generated: list[int] = field(default_factory=list)
    is_admitted: bool = False
    num_cached_tokens: int | None = None
    num_losses: int = 0
    drafts: DraftCounts | None = None
    drafts_of_lost_cores: DraftCounts | None = None

    @property
    def is_suspect(self) -> bool:
        """Whether it may be what ends cores, and fails with the next one."""
        return self.num_losses == MAX_LOSSES - 1

    def record(self, output: TokenOutput) -> TokenOutput:
        """Take note of new tokens, and return `output` with what the cores before have counted."""
        self.generated += output.token_ids
        if self.num_cached_tokens is None:
            self.num_cached_tokens = output.num_cached_tokens
        self.drafts = output.drafts
        if self.drafts_of_lost_cores is not None:
            self.drafts = self.drafts_of_lost_cores + (output.drafts or NO_DRAFTS)
        if (output.num_cached_tokens, output.drafts) == (self.num_cached_tokens, self.drafts):
            return output
        return msgspec.structs.replace(output, num_cached_tokens=self.num_cached_tokens, drafts=self.drafts)

    def lose_core(self) -> None:
        """Note that its core is lost."""
        self.replica = None
        self.num_losses += 1
        self.drafts_of_lost_cores = self.drafts

    def resumed(self) -> Submit:
        """Return the submission with the tokens so far."""
        return msgspec.structs.replace(self.submission, generated_token_ids=list(self.generated))


@dataclass(slots=True)
class Replica:
    """A place for a core; `client` is None while there is none."""

    client: CoreClient | None = None
    stats: EngineStats = field(default_factory=EngineStats)  # with the counts of the cores that were here before
    earlier: EngineStats = field(default_factory=EngineStats)  # these counts alone
    num_flights: int = 0
    num_suspects: int = 0
    is_lost: bool = False
    is_retiring: bool = False

    def vacate(self) -> None:
        """Forget the core and its requests, but not its counts."""
        self.client = None
        self.stats = self.earlier = add_counts(self.stats, EngineStats())
        self.num_flights = self.num_suspects = 0
        self.is_retiring = False
