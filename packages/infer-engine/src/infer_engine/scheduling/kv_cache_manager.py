"""`KVCacheManager`: what a scheduler asks of the KV cache's bookkeeping."""

from collections.abc import Sequence
from typing import Protocol

from infer_cache.block_map import BlockMap
from infer_cache.paged_manager import AdmissionBudget, PrefixHit, TableEdit


class KVCacheManager(Protocol):
    """What a scheduler asks of the KV cache's bookkeeping; `infer_cache` has a paged and a contiguous one."""

    @property
    def block_size(self) -> int:
        """Tokens of a block."""

    @property
    def num_blocks(self) -> int:
        """Blocks, free or not."""

    @property
    def num_free_blocks(self) -> int:
        """Blocks that no sequence holds."""

    @property
    def num_idle_blocks(self) -> int:
        """Free blocks that are kept for their content."""

    @property
    def num_evictions(self) -> int:
        """Blocks whose kept content was given up."""

    @property
    def usage(self) -> float:
        """Share of the memory that sequences hold, in [0, 1]."""

    def find(self, block_hashes: Sequence[bytes], num_tokens: int) -> PrefixHit:
        """Return the longest beginning of a sequence that is there."""

    def budget(self, reserve: float) -> AdmissionBudget:
        """Return what a step's admissions may take."""

    def costs(self, num_tokens: int, hit: PrefixHit) -> list[int]:
        """Return what admitting a sequence takes of that."""

    def fits(self, num_tokens: int, hit: PrefixHit) -> bool:
        """Return whether `admit` would succeed."""

    def admit(self, sequence_id: str, num_tokens: int, hit: PrefixHit) -> list[TableEdit]:
        """Reserve memory for a sequence."""

    def capacity(self, sequence_id: str) -> int:
        """Return how many tokens a sequence has room for."""

    def try_extend(self, sequence_id: str, num_tokens: int, *, first_position: int) -> list[TableEdit] | None:
        """Make room for more tokens, or return None."""

    def reuse_blocks(self, sequence_id: str, block_hashes: Sequence[bytes], num_computed: int) -> list[TableEdit]:
        """Take what others have computed in place of the sequence's own next blocks."""

    def cache_blocks(self, sequence_id: str, block_hashes: Sequence[bytes], num_tokens: int) -> None:
        """Let a sequence's full blocks be found."""

    def uncache_blocks(self, sequence_id: str, num_tokens: int) -> None:
        """Let only its first blocks be found."""

    def uncache_hashes(self, block_hashes: Sequence[bytes]) -> None:
        """Let no block be found by these names."""

    def release(self, sequence_id: str) -> None:
        """Give back a sequence's memory."""

    def holds(self, sequence_id: str) -> bool:
        """Return whether a sequence has memory."""

    def audit(self) -> list[tuple[int, int]]:
        """Return the leaked blocks."""

    def reclaim(self) -> int:
        """Free the leaked blocks and return how many they were."""

    def map_blocks(self, max_blocks: int) -> BlockMap:
        """Return who holds which blocks, those below `max_blocks`."""
