"""Which blocks each sequence holds, in every group of layers. Knows sequences, tokens and ids; no tensors, no schedule.

`PagedKVCacheManager` gives any free block on demand and finds cached blocks by their hashes. `ContiguousKVCacheManager`
(in `contiguous_manager.py`) has the same methods and gives each sequence a fixed extent of consecutive blocks.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from infer_cache.block_allocator import OutOfBlocksError
from infer_cache.block_map import BlockMap
from infer_cache.group_tables import BlockTable, GroupBlockTables, GroupSpec


class UnknownSequenceError(KeyError):
    """A sequence that holds no table was named."""

    def __init__(self, sequence_id: str) -> None:
        """Say which one."""
        super().__init__(sequence_id)
        self.sequence_id = sequence_id

    def __str__(self) -> str:
        """Return the message; a `KeyError` would show the bare key."""
        return f"`sequence_id` {self.sequence_id!r} holds no blocks; `admit` it first, and `release` it once."


@dataclass(frozen=True, slots=True)
class TableEdit:
    """Write `block_ids` into a sequence's row of group `group`'s block table, from column `column` on."""

    group: int
    column: int
    block_ids: list[int]


@dataclass(frozen=True, slots=True)
class PrefixHit:
    """The blocks of a sequence's beginning that were found.

    Attributes:
        num_tokens: tokens whose keys and values are there, a multiple of the block size.
        firsts: by group, the first block that is still in reach.
        blocks: by group, the ids from there on.
        num_shared_tokens: by group, tokens of those blocks that others hold: they cost no free memory.
    """

    num_tokens: int
    firsts: tuple[int, ...]
    blocks: tuple[tuple[int, ...], ...]
    num_shared_tokens: tuple[int, ...]


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
    """Block tables over pools that give any free block on demand, one pool for each group of layers."""

    __slots__ = ("_block_size", "_groups")

    def __init__(
        self,
        groups: Sequence[GroupSpec],
        block_size: int,
        *,
        max_chunk: int | None = None,
        keeps_prefixes: bool = False,
    ) -> None:
        """Share out the groups' blocks of `block_size` tokens each.

        Args:
            groups: one or more; entry 0 of every edit's `group` is the first.
            block_size: tokens of a block.
            max_chunk: most tokens of a sequence that one step computes: with a window, no more than these and the
                window's are held at a time. None: a sequence may be computed whole.
            keeps_prefixes: keep named blocks that nobody holds, as long as memory lasts.

        Raises:
            ValueError: a number of blocks is negative, `block_size` is not positive, or there is no group.
        """
        if block_size < 1:
            raise ValueError(f"`block_size` is {block_size}; it must be at least 1.")
        if not groups:
            raise ValueError("`groups` is empty; give at least one.")
        self._block_size = block_size
        self._groups = [
            GroupBlockTables(spec, block_size, max_chunk=max_chunk, keeps_idle=keeps_prefixes) for spec in groups
        ]

    @property
    def block_size(self) -> int:
        """Tokens of a block."""
        return self._block_size

    @property
    def groups(self) -> Sequence[GroupBlockTables]:
        """The groups, in order."""
        return self._groups

    @property
    def num_blocks(self) -> int:
        """Blocks of all groups, free or not."""
        return sum(group.blocks.num_blocks for group in self._groups)

    @property
    def num_free_blocks(self) -> int:
        """Blocks of all groups that no sequence holds, those that are kept for their content included."""
        return sum(group.blocks.num_free for group in self._groups)

    @property
    def num_idle_blocks(self) -> int:
        """Free blocks that are kept for their content."""
        return sum(group.blocks.num_idle for group in self._groups)

    @property
    def num_evictions(self) -> int:
        """Blocks whose kept content was given up, since the start."""
        return sum(group.blocks.num_evictions for group in self._groups)

    @property
    def num_free_tokens(self) -> int:
        """Tokens that there is room for: the least of any group."""
        return min(group.num_free_tokens for group in self._groups)

    @property
    def usage(self) -> float:
        """Share of the blocks that sequences hold, in [0, 1]: the highest of any group."""
        return max(1 - group.blocks.num_free / max(1, group.blocks.num_blocks) for group in self._groups)

    def find(self, block_hashes: Sequence[bytes], num_tokens: int) -> PrefixHit:
        """Return the longest beginning that is there of a sequence of `num_tokens` tokens, until blocks change hands.

        Args:
            block_hashes: of the sequence's full blocks, from `BlockHashes`; none of them finds nothing.
            num_tokens: of the sequence. At least its last one will be computed, so that much must be in reach.
        """
        found = [group.find(block_hashes) for group in self._groups]
        count = self._longest(found, num_tokens)
        firsts = tuple(self._first(group, count, num_tokens) if count else 0 for group in self._groups)
        blocks = tuple(
            tuple(block_id for block_id in ids[first:count] if block_id is not None)
            for ids, first in zip(found, firsts, strict=True)
        )
        num_held = tuple(
            sum(map(group.blocks.is_referenced, ids)) * self._block_size
            for group, ids in zip(self._groups, blocks, strict=True)
        )
        return PrefixHit(count * self._block_size, firsts, blocks, num_held)

    def budget(self, reserve: float) -> AdmissionBudget:
        """Return what a step's admissions may take, leaving the share `reserve` of the free tokens."""
        return AdmissionBudget([int(group.num_free_tokens * (1 - reserve)) for group in self._groups])

    def costs(self, num_tokens: int, hit: PrefixHit) -> list[int]:
        """Return the tokens of free memory that admitting a sequence takes, by group."""
        ends = self._ends(num_tokens, hit)
        return [
            max(0, min(num_tokens, end * self._block_size) - first * self._block_size - held)
            for end, first, held in zip(ends, hit.firsts, hit.num_shared_tokens, strict=True)
        ]

    def fits(self, num_tokens: int, hit: PrefixHit) -> bool:
        """Return whether `admit` would succeed."""
        return self._shortage(num_tokens, hit) is None

    def admit(self, sequence_id: str, num_tokens: int, hit: PrefixHit) -> list[TableEdit]:
        """Reserve blocks for `num_tokens` tokens, those of `hit` among them; in groups with a window what it reaches.

        Raises:
            OutOfBlocksError: not enough blocks are free; nothing has changed.
            ValueError: the sequence has blocks already.
        """
        if self.holds(sequence_id):
            raise ValueError(f"`sequence_id` {sequence_id!r} has blocks already; `release` it first.")
        shortage = self._shortage(num_tokens, hit)
        if shortage is not None:  # found out before any group evicts a block for it
            raise shortage
        edits = []
        try:
            for index, (group, end) in enumerate(zip(self._groups, self._ends(num_tokens, hit), strict=True)):
                table = group.open(sequence_id, first=hit.firsts[index], found=hit.blocks[index], end=end)
                edits.append(TableEdit(index, table.first, table.blocks.copy()))
        except BaseException:
            for group in self._groups:
                group.close(sequence_id)
            raise
        return edits

    def capacity(self, sequence_id: str) -> int:
        """Return how many tokens of the sequence have room as it is.

        Raises:
            UnknownSequenceError: the sequence has no table.
        """
        return min(table.end for table in self._tables(sequence_id)) * self._block_size

    def try_extend(self, sequence_id: str, num_tokens: int, *, first_position: int) -> list[TableEdit] | None:
        """Make room for `num_tokens` tokens in total, of which those from `first_position` on are still to compute.

        Blocks that no window reaches from there are given back first. Returns what changed, or None where not enough
        blocks are free: then nothing was added.

        Raises:
            UnknownSequenceError: the sequence has no table.
        """
        self._tables(sequence_id)
        for group in self._groups:
            group.free_outside_window(sequence_id, first_position)
        missing = [group.num_missing(sequence_id, num_tokens) for group in self._groups]
        if any(count > group.blocks.num_free for group, count in zip(self._groups, missing, strict=True)):
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
        """Take blocks that others have computed in the meantime in place of the sequence's own next ones.

        Each edit column adopted in the first group stands for `block_size` more tokens that need not be computed.

        Args:
            sequence_id: whose.
            block_hashes: of the sequence's full blocks.
            num_computed: its computed tokens; nothing is adopted within a block.

        Raises:
            UnknownSequenceError: the sequence has no table.
        """
        tables = self._tables(sequence_id)
        edits: list[TableEdit] = []
        index, within = divmod(num_computed, self._block_size)
        if within:
            return edits
        while index < len(block_hashes) and all(table.end > index for table in tables):
            found = [group.blocks.find(block_hashes[index]) for group in self._groups]
            own = [table.blocks[index - table.first] for table in tables]
            if None in found or any(theirs == ours for theirs, ours in zip(found, own, strict=True)):
                break
            for number, (group, block_id) in enumerate(zip(self._groups, found, strict=True)):
                assert block_id is not None
                group.replace(sequence_id, index, block_id)
                edits.append(TableEdit(number, index, [block_id]))
            index += 1
        return edits

    def cache_blocks(self, sequence_id: str, block_hashes: Sequence[bytes], num_tokens: int) -> None:
        """Let the sequence's full blocks among its first `num_tokens` tokens be found by their names.

        Raises:
            UnknownSequenceError: the sequence has no table.
        """
        self._tables(sequence_id)
        for group in self._groups:
            group.cache_blocks(sequence_id, block_hashes, min(num_tokens // self._block_size, group[sequence_id].end))

    def uncache_blocks(self, sequence_id: str, num_tokens: int) -> None:
        """Let only the blocks of the sequence's first `num_tokens` tokens be found.

        Raises:
            UnknownSequenceError: the sequence has no table.
        """
        self._tables(sequence_id)
        for group in self._groups:
            group.uncache_blocks(sequence_id, num_tokens // self._block_size)

    def uncache_hashes(self, block_hashes: Sequence[bytes]) -> None:
        """Let no block be found by any of `names`; names that no block has are left alone."""
        for group in self._groups:
            for block_id in group.find(block_hashes):
                if block_id is not None:
                    group.blocks.uncache_block(block_id)

    def release(self, sequence_id: str) -> None:
        """Give back a sequence's blocks and forget it.

        Raises:
            UnknownSequenceError: the sequence has no table.
        """
        self._tables(sequence_id)
        for group in self._groups:
            group.close(sequence_id)

    def holds(self, sequence_id: str) -> bool:
        """Return whether the sequence has blocks in any group."""
        return any(sequence_id in group for group in self._groups)

    def blocks(self, sequence_id: str, group: int = 0) -> tuple[int, ...]:
        """Return the blocks that a sequence holds in a group, in order.

        Raises:
            UnknownSequenceError: the sequence has no table.
        """
        return tuple(self._tables(sequence_id)[group].blocks)

    def map_blocks(self, max_blocks: int) -> BlockMap:
        """Return who holds which blocks of the group with the widest window, those below `max_blocks`. For people."""
        widest = max(self._groups, key=lambda group: math.inf if group.window is None else group.window)
        return widest.map_blocks(max_blocks)

    def audit(self) -> list[tuple[int, int]]:
        """Return the leaked blocks as (group, id): allocated, but reachable from no sequence. Reads the whole pool."""
        return [
            (index, block_id)
            for index, group in enumerate(self._groups)
            for block_id in group.blocks.audit(group.reachable())
        ]

    def reclaim(self) -> int:
        """Free the blocks that `audit` finds and return how many they were."""
        return sum(group.blocks.reclaim(group.reachable()) for group in self._groups)

    def _longest(self, found: Sequence[Sequence[int | None]], num_tokens: int) -> int:
        """How many blocks can be skipped where `found` are there, by group: every group has those in reach."""
        count = len(found[0])
        runs_by_group = []
        for ids in found:
            runs = [0]  # by number of blocks, how many of the last of them are there without a gap
            for block_id in ids:
                runs.append(0 if block_id is None else runs[-1] + 1)
            runs_by_group.append(runs)
        while count and any(
            runs[count] < count - self._first(group, count, num_tokens)
            for group, runs in zip(self._groups, runs_by_group, strict=True)
        ):
            count -= 1
        return count

    def _first(self, group: GroupBlockTables, count: int, num_tokens: int) -> int:
        """The first block in reach of what is computed after `count` found blocks: at least the last token."""
        return group.first_block_in_window(min(count * self._block_size, num_tokens - 1))

    def _shortage(self, num_tokens: int, hit: PrefixHit) -> OutOfBlocksError | None:
        """What is wrong with admitting a sequence: the first group that has too few free blocks."""
        for group, end, first, num_held in zip(
            self._groups, self._ends(num_tokens, hit), hit.firsts, hit.num_shared_tokens, strict=True
        ):
            num_asked, blocks = end - first - num_held // self._block_size, group.blocks
            if num_asked > blocks.num_free:
                return OutOfBlocksError(num_asked=num_asked, num_free=blocks.num_free, num_blocks=blocks.num_blocks)
        return None

    def _ends(self, num_tokens: int, hit: PrefixHit) -> list[int]:
        """By group, one past the last block that admitting a sequence reserves."""
        return [
            max(group.num_reserved(num_tokens, first=first), first + len(found))
            for group, first, found in zip(self._groups, hit.firsts, hit.blocks, strict=True)
        ]

    def _tables(self, sequence_id: str) -> list[BlockTable]:
        try:
            return [group[sequence_id] for group in self._groups]
        except KeyError:
            raise UnknownSequenceError(sequence_id) from None
