"""`PagedKVCacheManager`: growth at block boundaries, admission to all groups or none, exhaustion, leaks."""

import pytest

from infer_cache import BlockHashes, LeakedBlock, OutOfBlocksError, PagedKVCacheManager, TableEdit, UnknownSequenceError
from infer_cache.block_pool import BlockPool


def manager_of(*num_blocks: int, block_size: int = 4, keeps_prefixes: bool = False) -> PagedKVCacheManager:
    """A manager of groups without windows."""
    return PagedKVCacheManager(num_blocks, block_size, keeps_prefixes=keeps_prefixes)


def admit(manager: PagedKVCacheManager, sequence_id: str, num_tokens: int) -> list[TableEdit]:
    return manager.admit(sequence_id, num_tokens, manager.find([], num_tokens))


@pytest.mark.covers("scheduling/prompt-reserved-whole")
def test_a_prompt_is_reserved_whole() -> None:
    manager = manager_of(10)
    (edit,) = admit(manager, "a", 9)
    assert (edit.group, edit.column, len(edit.block_ids)) == (0, 0, 3)
    assert manager.blocks("a") == tuple(edit.block_ids)
    assert (manager.num_free_blocks, manager.capacity("a")) == (7, 12)
    assert manager.holds("a")


@pytest.mark.covers("scheduling/grows-by-block", "kv-cache/block-tables")
@pytest.mark.parametrize("block_size", [1, 2, 5, 16])
def test_decode_grows_by_a_block_exactly_at_block_boundaries(block_size: int) -> None:
    manager = manager_of(4, block_size=block_size)
    admit(manager, "a", 1)
    grown = [n for n in range(2, 3 * block_size + 1) if manager.try_extend("a", n, first_position=n - 1)]
    assert grown == [block_size + 1, 2 * block_size + 1]


@pytest.mark.covers("kv-cache/block-tables")
def test_an_edit_says_where_in_the_row_the_added_blocks_belong() -> None:
    manager = manager_of(8, 8)
    admit(manager, "a", 5)
    edits = manager.try_extend("a", 14, first_position=5)
    assert edits is not None
    assert [(edit.group, edit.column) for edit in edits] == [(0, 2), (1, 2)]
    assert [edit.block_ids for edit in edits] == [list(manager.blocks("a", group)[2:]) for group in (0, 1)]


@pytest.mark.covers("kv-cache/block-tables")
@pytest.mark.parametrize(("num_tokens", "num_blocks"), [(0, 0), (1, 1), (15, 1), (16, 1), (17, 2), (32, 2), (33, 3)])
def test_a_sequence_takes_as_many_blocks_as_its_tokens_need(num_tokens: int, num_blocks: int) -> None:
    manager = manager_of(8, block_size=16)
    (edit,) = admit(manager, "a", num_tokens)
    assert len(edit.block_ids) == num_blocks


def test_extending_to_less_than_the_capacity_changes_nothing() -> None:
    manager = manager_of(8)
    (edit,) = admit(manager, "a", 12)
    assert manager.try_extend("a", 1, first_position=0) == []
    assert manager.blocks("a") == tuple(edit.block_ids)


def test_the_ids_of_an_edit_are_a_copy() -> None:
    manager = manager_of(4, block_size=1)
    admit(manager, "a", 2)[0].block_ids.clear()
    edits = manager.try_extend("a", 3, first_position=2)
    assert edits is not None
    edits[0].block_ids.clear()
    assert len(manager.blocks("a")) == 3


def test_refused_admission_leaves_the_sequence_unknown() -> None:
    manager = manager_of(2)
    assert not manager.fits(9, manager.find([], 9))
    with pytest.raises(OutOfBlocksError, match="asked for 3 blocks but 2 of 2 are free"):
        admit(manager, "a", 9)
    assert not manager.holds("a")
    assert (manager.num_free_blocks, manager.audit()) == (2, [])


@pytest.mark.covers("kv-cache/all-or-nothing")
@pytest.mark.parametrize("num_blocks", [(2, 9, 9), (9, 2, 9), (9, 9, 2)])
def test_admission_takes_blocks_in_all_groups_or_in_none(num_blocks: tuple[int, ...]) -> None:
    manager = manager_of(*num_blocks)
    assert not manager.fits(9, manager.find([], 9))
    with pytest.raises(OutOfBlocksError):
        admit(manager, "a", 9)
    assert not manager.holds("a")
    assert (manager.num_free_blocks, manager.audit()) == (20, [])
    assert len(admit(manager, "a", 8)) == 3


def test_refused_admission_evicts_nothing() -> None:
    manager, hashes = manager_of(4, 2, keeps_prefixes=True), BlockHashes(4).upto(list(range(16)), 16)
    admit(manager, "a", 8)
    manager.cache_blocks("a", hashes, 8)
    manager.release("a")
    for hit in (manager.find(hashes, 16), manager.find([], 16)):
        with pytest.raises(OutOfBlocksError):
            manager.admit("b", 16, hit)
        assert manager.find(hashes, 16).num_tokens == 8
        assert (manager.num_evictions, manager.num_idle_blocks, manager.audit()) == (0, 4, [])


def test_a_sequence_is_admitted_once() -> None:
    manager = manager_of(8, 8)
    admit(manager, "a", 4)
    with pytest.raises(ValueError, match="`sequence_id` 'a' has blocks already"):
        admit(manager, "a", 4)
    assert manager.num_free_blocks == 14


def test_exhaustion_leaves_a_growing_sequence_as_it_was() -> None:
    manager = manager_of(2)
    (edit,) = admit(manager, "a", 5)
    assert manager.try_extend("a", 9, first_position=8) is None
    assert manager.blocks("a") == tuple(edit.block_ids)
    assert manager.try_extend("a", 8, first_position=5) == []


def test_growth_takes_blocks_in_all_groups_or_in_none() -> None:
    manager = manager_of(8, 2)
    admit(manager, "a", 8)
    assert manager.try_extend("a", 9, first_position=8) is None
    assert [len(manager.blocks("a", group)) for group in (0, 1)] == [2, 2]
    assert manager.num_free_blocks == 6


class MiscountingPool(BlockPool):
    """A pool that counts one block too many as free."""

    @property
    def num_free(self) -> int:
        return super().num_free + 1


def test_growth_that_fails_in_the_second_group_is_undone_in_the_first() -> None:
    manager = manager_of(5, 3)
    manager.groups[1].block_pool = MiscountingPool(3, keeps_idle=False)
    admit(manager, "a", 4)
    first, second = manager.blocks("a", 0), manager.blocks("a", 1)
    with pytest.raises(OutOfBlocksError):
        manager.try_extend("a", 16, first_position=4)
    assert (manager.blocks("a", 0), manager.blocks("a", 1)) == (first, second)
    assert manager.groups[0].block_pool.num_free == 4


def test_admission_that_fails_in_the_second_group_is_undone_in_both() -> None:
    manager = manager_of(5, 3, keeps_prefixes=True)
    manager.groups[1].block_pool = MiscountingPool(3, keeps_idle=True)
    admit(manager, "a", 4)
    manager.cache_blocks("a", [b"x"], 4)
    with pytest.raises(OutOfBlocksError):
        manager.admit("b", 16, manager.find([b"x"], 16))
    assert not manager.holds("b")
    assert manager.groups[0].block_pool.num_free == 4
    (shared,) = manager.blocks("a", 1)
    manager.release("a")
    assert not manager.groups[1].block_pool.is_referenced(shared)


def test_a_hit_whose_block_was_evicted_is_refused() -> None:
    manager = manager_of(5, 2, keeps_prefixes=True)
    admit(manager, "a", 4)
    manager.cache_blocks("a", [b"x"], 4)
    manager.release("a")
    hit = manager.find([b"x"], 5)
    admit(manager, "b", 8)
    manager.release("b")
    with pytest.raises(ValueError, match="is free"):
        manager.admit("c", 5, hit)
    assert (manager.holds("c"), manager.num_free_blocks, manager.audit()) == (False, 7, [])


def test_capacity_is_the_tokens_that_every_group_has_room_for() -> None:
    manager = manager_of(8, 8, block_size=5)
    admit(manager, "a", 6)
    assert manager.capacity("a") == 10
    manager.try_extend("a", 11, first_position=6)
    assert manager.capacity("a") == 15


def test_blocks_are_counted_over_all_groups() -> None:
    manager = manager_of(8, 3)
    assert (manager.num_blocks, manager.num_free_blocks) == (11, 11)
    admit(manager, "a", 1)
    assert (manager.num_blocks, manager.num_free_blocks) == (11, 9)


def test_usage_is_the_fullest_groups() -> None:
    manager = manager_of(8, 4)
    assert manager.usage == 0
    admit(manager, "a", 4)
    assert manager.usage == pytest.approx(1 / 4)


def test_a_budget_leaves_the_reserved_share_of_every_groups_tokens() -> None:
    manager = manager_of(100, 50, block_size=1)
    budget = manager.budget(0.2)
    costs = manager.costs(20, manager.find([], 20))
    assert costs == [20, 20]
    assert [budget.take(costs) for _ in range(3)] == [True, True, False]


@pytest.mark.covers("scheduling/admission-budget")
def test_prompts_of_100_200_and_300_tokens_are_admitted_as_free_tokens_allow() -> None:
    for num_tokens, admitted in ((250, [True, False, False]), (625, [True, True, False]), (750, [True, True, True])):
        manager = manager_of(num_tokens, block_size=1)
        budget = manager.budget(0.2)
        assert [budget.take(manager.costs(n, manager.find([], n))) for n in (100, 200, 300)] == admitted


def test_a_pool_of_no_blocks_admits_sequences_of_no_tokens() -> None:
    manager = manager_of(0)
    assert [edit.block_ids for edit in admit(manager, "a", 0)] == [[]]
    assert not manager.fits(1, manager.find([], 1))
    assert manager.try_extend("a", 1, first_position=0) is None


def test_an_unknown_sequence_is_an_error_that_names_it() -> None:
    manager = manager_of(2, 2)
    for use in (manager.release, manager.blocks, manager.capacity):
        with pytest.raises(UnknownSequenceError, match="`sequence_id` 'a' has no blocks"):
            use("a")
    with pytest.raises(KeyError):
        manager.try_extend("a", 1, first_position=0)
    with pytest.raises(KeyError):
        manager.reuse_blocks("a", [], 0)
    with pytest.raises(KeyError):
        manager.cache_blocks("a", [], 0)
    with pytest.raises(KeyError):
        manager.uncache_blocks("a", 0)


def test_a_sequence_is_released_once() -> None:
    manager = manager_of(2, 3)
    admit(manager, "a", 8)
    manager.release("a")
    assert (manager.num_free_blocks, manager.holds("a")) == (5, False)
    with pytest.raises(UnknownSequenceError):
        manager.release("a")


@pytest.mark.covers("kv-cache/audit")
def test_a_leak_is_found_with_its_group_and_reclaimed() -> None:
    manager = manager_of(8, 8)
    admit(manager, "alive", 8)
    leaked = manager.groups[1].block_pool.allocate(3)
    assert manager.audit() == [LeakedBlock(1, block_id, (None,)) for block_id in sorted(leaked)]
    assert manager.reclaim() == 3
    assert (manager.audit(), manager.num_free_blocks, len(manager.blocks("alive", 1))) == ([], 12, 2)


@pytest.mark.parametrize(("num_blocks", "block_size", "name"), [(-1, 4, "num_blocks"), (4, 0, "block_size")])
def test_impossible_sizes_are_refused(num_blocks: int, block_size: int, name: str) -> None:
    with pytest.raises(ValueError, match=f"`{name}` is"):
        manager_of(num_blocks, block_size=block_size)


def test_no_groups_are_refused() -> None:
    with pytest.raises(ValueError, match="`num_blocks` is empty"):
        PagedKVCacheManager([], 4)


def test_windows_of_another_number_of_groups_are_refused() -> None:
    with pytest.raises(ValueError, match="`windows` is of 1 groups but `num_blocks` of 2"):
        PagedKVCacheManager([4, 4], 4, windows=[None])
