"""`HybridKVCacheManager`: the blocks of a model's attention, and the states of its other layers.

A prefix is found where both are cached: its blocks, and the state after its last one. So states are kept at ends of
blocks: where a prompt's last full block ends, where messages of a conversation begin (a later prompt may differ from
there on), and where another prompt has turned off a prefix whose blocks were all there.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from infer_cache.leaks import LeakedBlock
from infer_cache.paged_manager import PagedKVCacheManager, PrefixHit, TableEdit
from infer_cache.states.sequence_states import StateCounts, StateMove
from infer_cache.states.state_slots import StateSlots

MAX_KEPT_STARTS = 4
"""States of a prompt that are kept where messages begin: the last ones, since a conversation changes at its end."""


class HybridKVCacheManager(PagedKVCacheManager):
    """Block tables and slots of states. Implements `SequenceStates` too."""

    __slots__ = ("_num_prompt_tokens", "_slots")

    def __init__(
        self,
        num_blocks: Sequence[int],
        block_size: int,
        *,
        slots: StateSlots,
        windows: Sequence[int | None] | None = None,
        max_chunk: int | None = None,
        keeps_prefixes: bool = False,
    ) -> None:
        """Start with no sequences; `slots` are of the states, other arguments as for `PagedKVCacheManager`."""
        super().__init__(num_blocks, block_size, windows=windows, max_chunk=max_chunk, keeps_prefixes=keeps_prefixes)
        self._slots = slots
        self._num_prompt_tokens: dict[str, int] = {}  # by admitted sequence, the tokens that it had then

    @property
    def states(self) -> "HybridKVCacheManager":
        """The states of its sequences."""
        return self

    @property
    def counts(self) -> StateCounts:
        """The number of slots of states, and what they hold."""
        return self._slots.counts

    @property
    def is_repeatable(self) -> bool:
        """Whether a step can be computed again, as none overwrites a state."""
        return self._slots.is_repeatable

    @property
    def slots(self) -> StateSlots:
        """The slots of states."""
        return self._slots

    @property
    def usage(self) -> float:
        """Share of the blocks, or of the slots if that is more, that sequences have, in [0, 1]."""
        return max(super().usage, self._slots.usage)

    def find(self, block_hashes: Sequence[bytes], num_tokens: int) -> PrefixHit:
        """Return the longest prefix of a sequence whose blocks and whose last state are cached.

        At least the last token is left to compute. Arguments as for `PagedKVCacheManager.find`.
        """
        self._slots.settle()
        cached = super().find(block_hashes, num_tokens)
        for count in range(min(cached.num_tokens, num_tokens - 1) // self.block_size, 0, -1):
            slot = self._slots.find(block_hashes[count - 1])
            if slot is None:
                continue
            hit = super().find(block_hashes[:count], num_tokens)
            if hit.num_tokens == count * self.block_size:
                return replace(hit, state_slot=slot, num_cached_keys=cached.num_tokens)
        return replace(super().find((), num_tokens), num_cached_keys=cached.num_tokens)

    def fits(self, num_tokens: int, hit: PrefixHit) -> bool:
        """Return whether enough blocks and slots are free to `admit` a sequence."""
        return self._slots.can_open(hit.state_slot) and super().fits(num_tokens, hit)

    def admit(self, sequence_id: str, num_tokens: int, hit: PrefixHit) -> list[TableEdit]:
        """Reserve blocks and slots; as for `PagedKVCacheManager.admit`."""
        edits = super().admit(sequence_id, num_tokens, hit)
        try:
            self._slots.open(sequence_id, end=hit.num_tokens, slot=hit.state_slot)
        except BaseException:
            super().release(sequence_id)
            raise
        self._num_prompt_tokens[sequence_id] = num_tokens
        return edits

    def reuse_blocks(self, sequence_id: str, block_hashes: Sequence[bytes], num_computed: int) -> list[TableEdit]:
        """Replace the sequence's next blocks up to a kept state; as for `PagedKVCacheManager.reuse_blocks`."""
        self._slots.settle()
        first, within = divmod(num_computed, self.block_size)
        most = min(len(block_hashes), (self._num_prompt_tokens[sequence_id] - 1) // self.block_size)
        if within:
            return []
        end = first
        while end < most and self._is_reusable(sequence_id, end, block_hashes[end]):
            end += 1
        while end > first and self._slots.find(block_hashes[end - 1]) is None:
            end -= 1
        slot = self._slots.find(block_hashes[end - 1]) if end > first else None
        if slot is None or not self._slots.can_jump(sequence_id, slot):
            return []
        edits = super().reuse_blocks(sequence_id, block_hashes[:end], num_computed)
        self._slots.jump(sequence_id, end=end * self.block_size, slot=slot)
        return edits

    def cache_blocks(self, sequence_id: str, block_hashes: Sequence[bytes], num_tokens: int) -> None:
        """Cache full blocks, and the state after `num_tokens` tokens if a block ends there."""
        super().cache_blocks(sequence_id, block_hashes, num_tokens)
        if num_tokens % self.block_size == 0:
            self._slots.keep(sequence_id, num_tokens, block_hashes[num_tokens // self.block_size - 1])

    def uncache_blocks(self, sequence_id: str, num_tokens: int) -> None:
        """Remove the hashes of the sequence's blocks and states after its first `num_tokens` tokens."""
        super().uncache_blocks(sequence_id, num_tokens)
        self._slots.forget_after(sequence_id, num_tokens)

    def uncache_hashes(self, block_hashes: Sequence[bytes]) -> None:
        """Remove these hashes, so that they find no block and no state."""
        super().uncache_hashes(block_hashes)
        self._slots.settle()
        for block_hash in block_hashes:
            slot = self._slots.find(block_hash)
            if slot is not None:
                self._slots.pool.uncache_block(slot)

    def release(self, sequence_id: str) -> None:
        """Release a sequence's blocks and slots; what they hold of kept prefixes stays until it is evicted."""
        super().release(sequence_id)
        self._slots.close(sequence_id)
        self._num_prompt_tokens.pop(sequence_id, None)

    def audit(self) -> list[LeakedBlock]:
        """Return the leaked blocks, and the leaked slots as those of a group after the others."""
        return super().audit() + self._slots.audit(group=len(self.groups))

    def reclaim(self) -> int:
        """Free the blocks and slots that `audit` finds and return how many they were."""
        return super().reclaim() + self._slots.reclaim()

    def keep(self, sequence_id: str, positions: Sequence[int]) -> None:
        """Keep the states at the last ends of blocks at or before `positions`, and at the prompt's last full block."""
        size = self.block_size
        last = (self._num_prompt_tokens[sequence_id] - 1) // size
        starts = sorted({min(position // size, last) for position in positions if position >= size})[-MAX_KEPT_STARTS:]
        self._slots.keep_at(sequence_id, [count * size for count in {*starts, last} if count])

    def chunk_end(self, sequence_id: str, start: int, end: int) -> int:
        """Return `end`, or the first position before it whose state is to be kept."""
        return self._slots.next_kept(sequence_id, start, end)

    def move(self, chunks: Iterable[tuple[str, int, int]]) -> Mapping[str, StateMove]:
        """Return the slots of each sequence in a step that computes its tokens from `start` to `end`."""
        return self._slots.move(chunks)

    def move_drafts(self, sequence_id: str, most: int) -> Sequence[StateMove]:
        """Return the slots of a step and of up to `most` draft tokens; as `SequenceStates.move_drafts`."""
        return self._slots.move_drafts(sequence_id, most)

    def release_drafts(self, sequence_id: str, num_tokens: int) -> None:
        """Take back the slots of draft tokens; as `SequenceStates.release_drafts`."""
        self._slots.release_drafts(sequence_id, num_tokens)

    def require_repeatable(self, *, is_repeatable: bool) -> None:
        """Let no step write the state that it reads, or let steps overwrite states; as for `SequenceStates`."""
        self._slots.is_repeatable = is_repeatable

    def _is_reusable(self, sequence_id: str, index: int, block_hash: bytes) -> bool:
        """Whether a cached block can take the place of the sequence's block `index`, in all groups."""
        for group in self.groups:
            table, cached = group[sequence_id], group.block_pool.find(block_hash)
            if table.end <= index or cached in (None, table.block_ids[index - table.first_block]):
                return False
        return True
