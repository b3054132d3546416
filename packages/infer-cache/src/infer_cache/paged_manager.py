"""`PagedKVCacheManager`: the blocks of each sequence, in every group of layers.

It allocates any free blocks on demand and finds cached ones by their hashes. `ContiguousKVCacheManager` has the same
methods and gives each sequence a slot of consecutive blocks.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from infer_cache.block_allocator import OutOfBlocksError, UnknownSequenceError
from infer_cache.block_map import BlockMap
from infer_cache.group_tables import BlockTable, GroupBlockTables
from infer_cache.leaks import LeakedBlock
from infer_cache.states.sequence_states import NO_STATES, SequenceStates


@dataclass(frozen=True, slots=True)
class TableEdit:
    """Write `block_ids` into a sequence's row of the block table of group `group`, from column `column` on."""

    group: int
    column: int
    block_ids: list[int]


@dataclass(frozen=True, slots=True)
class PrefixHit:
    """The cached blocks that were found for the beginning of a sequence.

    Attributes:
        num_tokens: tokens whose keys and values are cached, a multiple of the block size.
        first_blocks: the first block that the other tokens attend to, by group.
        block_ids: the cached blocks from there on, by group.
        num_shared_tokens: tokens of those blocks that other sequences reference, by group: they cost no free memory.
        state_slot: the slot of the state after those tokens; None where nothing was found or the model has no states.
        num_cached_keys: tokens whose keys and values are cached where a state after them may not be.
    """

    num_tokens: int
    first_blocks: tuple[int, ...]
    block_ids: tuple[tuple[int, ...], ...]
    num_shared_tokens: tuple[int, ...]
    state_slot: int | None = None
    num_cached_keys: int = 0


class AdmissionBudget:
    """Tokens that one step's admissions may still take, by group."""

    __slots__ = ("_left",)

    def __init__(self, limits: Sequence[int]) -> None:
        """Begin with `limits` tokens."""
        self._left = list(limits)

    def take(self, costs: Sequence[int]) -> bool:
        """Take `costs` tokens; return whether every group had as many left."""
        self._left = [left - cost for left, cost in zip(self._left, costs, strict=True)]
        return min(self._left) >= 0


class PagedKVCacheManager:
    """Block tables over pools of blocks that are allocated on demand, one pool for each group of layers."""

    __slots__ = ("_block_size", "_groups")

    def __init__(
        self,
        num_blocks: Sequence[int],
        block_size: int,
        *,
        windows: Sequence[int | None] | None = None,
        max_chunk: int | None = None,
        keeps_prefixes: bool = False,
    ) -> None:
        """Start with no sequences and all blocks free.

        Args:
            num_blocks: blocks of each group; at least one group.
            block_size: tokens of a block.
            windows: sliding window of each group's layers in tokens; None keeps all blocks of a sequence. Without
                this argument no group has a window.
            max_chunk: most tokens of a sequence that one step computes; a group with a window has room for these and
                for the window. None: a sequence may be computed whole.
            keeps_prefixes: keep cached blocks without references until they are evicted.

        Raises:
            ValueError: a number of blocks is negative, `block_size` is not positive, there is no group, or `windows`
                are of another number of groups.
        """
        if block_size < 1:
            raise ValueError(f"`block_size` is {block_size}; it must be at least 1.")
        if not num_blocks:
            raise ValueError("`num_blocks` is empty; give the blocks of at least one group.")
        if windows is None:
            windows = [None] * len(num_blocks)
        if len(windows) != len(num_blocks):
            raise ValueError(
                f"`windows` is of {len(windows)} groups but `num_blocks` of {len(num_blocks)}; give both by group."
            )
        self._block_size = block_size
        self._groups = [
            GroupBlockTables(count, block_size, window=window, max_chunk=max_chunk, keeps_idle=keeps_prefixes)
            for count, window in zip(num_blocks, windows, strict=True)
        ]

    @property
    def block_size(self) -> int:
        """Tokens of a block."""
        return self._block_size

    @property
    def states(self) -> SequenceStates:
        """The states of sequences: none."""
        return NO_STATES

    @property
    def groups(self) -> Sequence[GroupBlockTables]:
        """The block tables of each group."""
        return self._groups

    @property
    def num_blocks(self) -> int:
        """Blocks of all groups, free or not."""
        return sum(group.block_pool.num_blocks for group in self._groups)

    @property
    def num_free_blocks(self) -> int:
        """Blocks of all groups that no sequence has, idle ones included."""
        return sum([group.block_pool.num_free for group in self._groups])

    @property
    def num_idle_blocks(self) -> int:
        """Cached free blocks of all groups: kept for their content until they are evicted."""
        return sum([group.block_pool.num_idle for group in self._groups])

    @property
    def num_evictions(self) -> int:
        """Idle blocks that were evicted for an allocation, since the start."""
        return sum([group.block_pool.num_evictions for group in self._groups])

    @property
    def usage(self) -> float:
        """Share of the blocks that sequences have, in [0, 1]: the highest of any group."""
        return max(1 - group.block_pool.num_free / max(1, group.block_pool.num_blocks) for group in self._groups)

    def find(self, block_hashes: Sequence[bytes], num_tokens: int) -> PrefixHit:
        """Return the longest cached prefix of a sequence; it is valid until blocks are allocated or released.

        Args:
            block_hashes: hashes of the sequence's full blocks, from `BlockHashes`; an empty list finds nothing.
            num_tokens: tokens of the sequence. At least the last one will be computed, so the hit has the blocks that
                it attends to.
        """
        found = [group.find(block_hashes) for group in self._groups]
        count = self._longest_hit(found, num_tokens)
        first_blocks = tuple(
            self._first_block_after(group, count, num_tokens) if count else 0 for group in self._groups
        )
        block_ids = tuple(
            tuple(block_id for block_id in ids[first:count] if block_id is not None)
            for ids, first in zip(found, first_blocks, strict=True)
        )
        num_shared_tokens = tuple(
            sum(map(group.block_pool.is_referenced, ids)) * self._block_size
            for group, ids in zip(self._groups, block_ids, strict=True)
        )
        return PrefixHit(count * self._block_size, first_blocks, block_ids, num_shared_tokens)

    def budget(self, reserve: float) -> AdmissionBudget:
        """Return the tokens that one step's admissions may take: the free ones, less the share `reserve` of them."""
        return AdmissionBudget([int(group.num_free_tokens * (1 - reserve)) for group in self._groups])

    def costs(self, num_tokens: int, hit: PrefixHit) -> list[int]:
        """Return the tokens of free memory that admitting a sequence takes, by group."""
        ends = self._reserved_ends(num_tokens, hit)
        return [
            max(0, min(num_tokens, end * self._block_size) - first * self._block_size - num_shared)
            for end, first, num_shared in zip(ends, hit.first_blocks, hit.num_shared_tokens, strict=True)
        ]

    def fits(self, num_tokens: int, hit: PrefixHit) -> bool:
        """Return whether enough blocks are free to `admit` a sequence."""
        return self._shortage(num_tokens, hit) is None

    def admit(self, sequence_id: str, num_tokens: int, hit: PrefixHit) -> list[TableEdit]:
        """Reserve blocks for `num_tokens` tokens, those of `hit` among them.

        In a group with a window, that is no more than `max_blocks_in_window`.

        Raises:
            OutOfBlocksError: not enough blocks are free; nothing has changed.
            ValueError: the sequence has blocks already, or a block of `hit` was evicted since; nothing has changed.
        """
        if self.holds(sequence_id):
            raise ValueError(f"`sequence_id` {sequence_id!r} has blocks already; `release` it first.")
        shortage = self._shortage(num_tokens, hit)
        if shortage is not None:  # raised before any group evicts a block
            raise shortage
        edits = []
        try:
            for index, (group, end) in enumerate(zip(self._groups, self._reserved_ends(num_tokens, hit), strict=True)):
                table = group.open(
                    sequence_id, first_block=hit.first_blocks[index], found=hit.block_ids[index], end=end
                )
                edits.append(TableEdit(index, table.first_block, table.block_ids.copy()))
        except BaseException:
            for group in self._groups:
                group.close(sequence_id)
            raise
        return edits

    def capacity(self, sequence_id: str) -> int:
        """Return how many tokens the sequence's blocks have room for.

        Raises:
            UnknownSequenceError: the sequence has no table.
        """
        return min(table.end for table in self._tables(sequence_id)) * self._block_size

    def try_extend(self, sequence_id: str, num_tokens: int, *, first_position: int) -> list[TableEdit] | None:
        """Make room for `num_tokens` tokens in total, of which those from `first_position` on are still to compute.

        First releases the blocks that those tokens do not attend to. Returns the changes of the tables, or None where
        not enough blocks are free; then nothing was added.

        Raises:
            UnknownSequenceError: the sequence has no table.
        """
        self._tables(sequence_id)
        for group in self._groups:
            group.free_outside_window(sequence_id, first_position)
        missing = [group.num_missing(sequence_id, num_tokens) for group in self._groups]
        if any(count > group.block_pool.num_free for group, count in zip(self._groups, missing, strict=True)):
            return None
        edits: list[TableEdit] = []
        try:
            for index, (group, count) in enumerate(zip(self._groups, missing, strict=True)):
                if count:
                    end = group[sequence_id].end
                    edits.append(TableEdit(index, end, group.grow(sequence_id, count)))
        except BaseException:
            for edit in edits:
                self._groups[edit.group].shrink(sequence_id, len(edit.block_ids))
            raise
        return edits

    def reuse_blocks(self, sequence_id: str, block_hashes: Sequence[bytes], num_computed: int) -> list[TableEdit]:
        """Replace the sequence's next blocks by cached ones, which other sequences have computed since its admission.

        For each column of the edits, `block_size` more tokens need not be computed.

        Args:
            sequence_id: the sequence.
            block_hashes: hashes of the sequence's full blocks.
            num_computed: its computed tokens; where these end within a block, nothing is replaced.

        Raises:
            UnknownSequenceError: the sequence has no table.
        """
        tables = self._tables(sequence_id)
        edits: list[TableEdit] = []
        index, within = divmod(num_computed, self._block_size)
        if within:
            return edits
        while index < len(block_hashes) and all(table.end > index for table in tables):
            cached = [group.block_pool.find(block_hashes[index]) for group in self._groups]
            own = [table.block_ids[index - table.first_block] for table in tables]
            if None in cached or any(one == other for one, other in zip(cached, own, strict=True)):
                break
            for number, (group, block_id) in enumerate(zip(self._groups, cached, strict=True)):
                assert block_id is not None
                group.replace(sequence_id, index, block_id)
                edits.append(TableEdit(number, index, [block_id]))
            index += 1
        return edits

    def cache_blocks(self, sequence_id: str, block_hashes: Sequence[bytes], num_tokens: int) -> None:
        """Cache the sequence's full blocks among its first `num_tokens` tokens under their hashes.

        Raises:
            UnknownSequenceError: the sequence has no table.
        """
        self._tables(sequence_id)
        for group in self._groups:
            group.cache_blocks(sequence_id, block_hashes, min(num_tokens // self._block_size, group[sequence_id].end))

    def uncache_blocks(self, sequence_id: str, num_tokens: int) -> None:
        """Remove the hashes of the sequence's blocks but the full ones among its first `num_tokens` tokens.

        Raises:
            UnknownSequenceError: the sequence has no table.
        """
        self._tables(sequence_id)
        for group in self._groups:
            group.uncache_blocks(sequence_id, num_tokens // self._block_size)

    def uncache_hashes(self, block_hashes: Sequence[bytes]) -> None:
        """Remove these hashes, so that they find no block; those under which no block is cached are left out."""
        for group in self._groups:
            for block_id in group.find(block_hashes):
                if block_id is not None:
                    group.block_pool.uncache_block(block_id)

    def release(self, sequence_id: str) -> None:
        """Release a sequence's blocks and remove its tables.

        Raises:
            UnknownSequenceError: the sequence has no table.
        """
        self._tables(sequence_id)
        for group in self._groups:
            group.close(sequence_id)

    def holds(self, sequence_id: str) -> bool:
        """Return whether the sequence has a table in any group."""
        return any(sequence_id in group for group in self._groups)

    def blocks(self, sequence_id: str, group: int = 0) -> tuple[int, ...]:
        """Return the ids of a sequence's blocks in a group, in order.

        Raises:
            UnknownSequenceError: the sequence has no table.
        """
        return tuple(self._tables(sequence_id)[group].block_ids)

    def map_blocks(self, max_blocks: int) -> BlockMap:
        """Return a map of the group with the widest window, with the reference counts of blocks below `max_blocks`."""
        widest = max(self._groups, key=lambda group: math.inf if group.window is None else group.window)
        return widest.map_blocks(max_blocks)

    def audit(self) -> list[LeakedBlock]:
        """Return the leaked blocks, by group and id: allocated, but in no table and not idle. Reads all pools."""
        return [
            LeakedBlock(index, block_id, group.block_pool.holders(block_id), group.block_pool.is_cached(block_id))
            for index, group in enumerate(self._groups)
            for block_id in group.block_pool.audit(group.reachable())
        ]

    def reclaim(self) -> int:
        """Free the blocks that `audit` finds and return how many they were."""
        return sum(group.block_pool.reclaim(group.reachable()) for group in self._groups)

    def _longest_hit(self, found: Sequence[Sequence[int | None]], num_tokens: int) -> int:
        """Return how many blocks need not be computed, where `found` are cached, by group.

        Every group must have the blocks that the token after them attends to.
        """
        count = len(found[0])
        # By group and number of blocks, how many of the last of these are cached without a gap.
        consecutive = []
        for ids in found:
            counts = [0]
            for block_id in ids:
                counts.append(0 if block_id is None else counts[-1] + 1)
            consecutive.append(counts)
        while count and any(
            counts[count] < count - self._first_block_after(group, count, num_tokens)
            for group, counts in zip(self._groups, consecutive, strict=True)
        ):
            count -= 1
        return count

    def _first_block_after(self, group: GroupBlockTables, count: int, num_tokens: int) -> int:
        """Return the first block attended to by the tokens after `count` cached blocks, at least by the last token."""
        return group.first_block_in_window(min(count * self._block_size, num_tokens - 1))

    def _shortage(self, num_tokens: int, hit: PrefixHit) -> OutOfBlocksError | None:
        """Return the error of admitting a sequence for the first group that has too few free blocks, or None."""
        for group, end, first, num_shared in zip(
            self._groups,
            self._reserved_ends(num_tokens, hit),
            hit.first_blocks,
            hit.num_shared_tokens,
            strict=True,
        ):
            num_asked, pool = end - first - num_shared // self._block_size, group.block_pool
            if num_asked > pool.num_free:
                return OutOfBlocksError(num_asked, pool.num_free, pool.num_blocks)
        return None

    def _reserved_ends(self, num_tokens: int, hit: PrefixHit) -> list[int]:
        """Return, by group, one past the last block that admitting a sequence reserves."""
        return [
            max(group.reserved_end(num_tokens, first_block=first), first + len(block_ids))
            for group, first, block_ids in zip(self._groups, hit.first_blocks, hit.block_ids, strict=True)
        ]

    def _tables(self, sequence_id: str) -> list[BlockTable]:
        try:
            return [group[sequence_id] for group in self._groups]
        except KeyError:
            raise UnknownSequenceError(sequence_id) from None
