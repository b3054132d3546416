"""`KVCacheManager`: the protocol by which a scheduler allocates KV blocks."""

from collections.abc import Sequence
from typing import Protocol

from infer_cache.block_map import BlockMap
from infer_cache.leaks import LeakedBlock
from infer_cache.paged_manager import AdmissionBudget, PrefixHit, TableEdit
from infer_cache.states.sequence_states import SequenceStates


class KVCacheManager(Protocol):
    """Allocates KV blocks to sequences; `infer_cache` has a paged and a contiguous implementation."""

    @property
    def block_size(self) -> int:
        """Tokens of one block."""

    @property
    def states(self) -> SequenceStates:
        """The states of sequences, of which most models have none."""

    @property
    def num_blocks(self) -> int:
        """All blocks, free or not."""

    @property
    def num_free_blocks(self) -> int:
        """Blocks that no sequence holds."""

    @property
    def num_idle_blocks(self) -> int:
        """Free blocks that are kept for their cached content."""

    @property
    def num_evictions(self) -> int:
        """Blocks whose cached content was evicted, since the start."""

    @property
    def usage(self) -> float:
        """Share of the blocks that sequences hold, in [0, 1]."""

    def find(self, block_hashes: Sequence[bytes], num_tokens: int) -> PrefixHit:
        """Return the longest cached prefix of a sequence."""

    def budget(self, reserve: float) -> AdmissionBudget:
        """Return how many blocks the admissions of a step may take."""

    def costs(self, num_tokens: int, hit: PrefixHit) -> list[int]:
        """Return how many blocks of each group admitting a sequence takes."""

    def fits(self, num_tokens: int, hit: PrefixHit) -> bool:
        """Return whether `admit` would succeed."""

    def admit(self, sequence_id: str, num_tokens: int, hit: PrefixHit) -> list[TableEdit]:
        """Allocate the blocks of a sequence."""

    def capacity(self, sequence_id: str) -> int:
        """Return how many tokens fit the blocks of a sequence."""

    def try_extend(self, sequence_id: str, num_tokens: int, *, first_position: int) -> list[TableEdit] | None:
        """Allocate blocks for more tokens, or return None if there are not enough."""

    def reuse_blocks(self, sequence_id: str, block_hashes: Sequence[bytes], num_computed: int) -> list[TableEdit]:
        """Replace the sequence's next blocks by cached ones."""

    def cache_blocks(self, sequence_id: str, block_hashes: Sequence[bytes], num_tokens: int) -> None:
        """Cache the full blocks of a sequence under their hashes."""

    def uncache_blocks(self, sequence_id: str, num_tokens: int) -> None:
        """Uncache the blocks of a sequence after its first `num_tokens` tokens."""

    def uncache_hashes(self, block_hashes: Sequence[bytes]) -> None:
        """Uncache the blocks with these hashes."""

    def release(self, sequence_id: str) -> None:
        """Free the blocks of a sequence."""

    def holds(self, sequence_id: str) -> bool:
        """Return whether a sequence has blocks."""

    def audit(self) -> list[LeakedBlock]:
        """Return the leaked blocks, which know whose they were."""

    def reclaim(self) -> int:
        """Free the leaked blocks and return their number."""

    def map_blocks(self, max_blocks: int) -> BlockMap:
        """Return which sequences hold which of the first `max_blocks` blocks."""
