"""Prefix caching: what a hit needs and costs, which blocks are cached, kept, uncached and reused."""

from collections.abc import Iterable, Sequence

import pytest

from infer_cache import BlockHashes, PagedKVCacheManager, TableEdit

TOKENS = list(range(100, 140))
SIZE = 4
BLOCK_HASHES = BlockHashes(SIZE).upto(TOKENS, len(TOKENS))


def manager_of(
    *windows: int | None, num_blocks: int = 16, keeps_prefixes: bool = True, max_chunk: int | None = None
) -> PagedKVCacheManager:
    return PagedKVCacheManager(
        [num_blocks] * len(windows), SIZE, windows=windows, max_chunk=max_chunk, keeps_prefixes=keeps_prefixes
    )


def admit(
    manager: PagedKVCacheManager, sequence_id: str, num_tokens: int, *, hashes: Sequence[bytes] = BLOCK_HASHES
) -> list[TableEdit]:
    """Admit a sequence of the first tokens of `TOKENS`, with what is cached of them."""
    return manager.admit(sequence_id, num_tokens, manager.find(hashes[: num_tokens // SIZE], num_tokens))


def compute(manager: PagedKVCacheManager, sequence_id: str, num_tokens: int) -> None:
    """Admit a sequence and cache its full blocks, as if they were computed."""
    admit(manager, sequence_id, num_tokens)
    manager.cache_blocks(sequence_id, BLOCK_HASHES, num_tokens)


def uncache(manager: PagedKVCacheManager, group: int, columns: Iterable[int]) -> None:
    """Remove hashes in one group, as an eviction there would."""
    for column in columns:
        block_id = manager.groups[group].block_pool.find(BLOCK_HASHES[column])
        assert block_id is not None
        manager.groups[group].block_pool.uncache_block(block_id)


def test_the_longest_cached_prefix_is_found() -> None:
    manager = manager_of(None)
    compute(manager, "a", 3 * SIZE)
    hit = manager.find(BLOCK_HASHES, len(TOKENS))
    assert (hit.num_tokens, hit.first_blocks, hit.block_ids) == (12, (0,), (manager.blocks("a"),))
    assert manager.find(BLOCK_HASHES[:2], 11).block_ids == (manager.blocks("a")[:2],)


def test_nothing_is_found_with_another_salt_or_before_blocks_are_cached() -> None:
    manager = manager_of(None, 4)
    admit(manager, "a", 12)
    assert manager.find(BLOCK_HASHES, 12).num_tokens == 0
    manager.cache_blocks("a", BLOCK_HASHES, 12)
    others = BlockHashes(SIZE, salt="tenant").upto(TOKENS, 12)
    hit = manager.find(others, 12)
    assert (hit.num_tokens, hit.first_blocks, hit.block_ids, hit.num_shared_tokens) == (0, (0, 0), ((), ()), (0, 0))


def test_a_missing_block_ends_a_hit_in_a_group_without_a_window() -> None:
    manager = manager_of(None)
    compute(manager, "a", 20)
    uncache(manager, 0, [2])
    assert manager.find(BLOCK_HASHES, 20).num_tokens == 8


def test_a_partly_computed_block_is_not_cached() -> None:
    manager = manager_of(None)
    admit(manager, "a", 12)
    manager.cache_blocks("a", BLOCK_HASHES, 11)
    assert manager.find(BLOCK_HASHES, 12).num_tokens == 8


def test_a_group_with_a_window_needs_only_the_blocks_in_the_window() -> None:
    manager = manager_of(None, 5)
    compute(manager, "a", 20)
    uncache(manager, 1, range(4))
    hit = manager.find(BLOCK_HASHES, 40)
    assert (hit.num_tokens, hit.first_blocks) == (20, (0, 4))
    assert [len(blocks) for blocks in hit.block_ids] == [5, 1]


@pytest.mark.parametrize(("uncached", "num_tokens"), [(4, 16), (3, 12), (2, 20)])
def test_a_hit_gets_shorter_until_its_window_is_cached(uncached: int, num_tokens: int) -> None:
    manager = manager_of(None, 6)
    compute(manager, "a", 20)
    uncache(manager, 1, [uncached])
    assert manager.find(BLOCK_HASHES, 40).num_tokens == num_tokens


def test_a_hit_needs_the_windows_of_all_groups() -> None:
    manager = manager_of(4, 12)
    compute(manager, "a", 20)
    uncache(manager, 0, [4])
    uncache(manager, 1, [1])
    hit = manager.find(BLOCK_HASHES, 40)
    assert (hit.num_tokens, hit.first_blocks) == (4, (0, 0))


def test_a_fully_cached_prompt_has_the_window_of_its_last_token() -> None:
    manager = manager_of(None, 2)
    compute(manager, "a", 20)
    hit = manager.find(BLOCK_HASHES, 20)
    assert (hit.num_tokens, hit.first_blocks) == (20, (0, 4))
    assert [len(blocks) for blocks in hit.block_ids] == [5, 1]
    assert manager.find(BLOCK_HASHES[:5], 21).first_blocks == (0, 4)


def test_a_fully_cached_prompt_of_one_token_blocks_has_what_its_last_token_attends_to() -> None:
    manager = PagedKVCacheManager([8], 1, windows=[2], keeps_prefixes=True)
    hashes = BlockHashes(1).upto(TOKENS, 4)
    manager.admit("a", 4, manager.find(hashes, 4))
    manager.cache_blocks("a", hashes, 4)
    assert manager.find(hashes, 4).first_blocks == (2,)
    assert manager.find(hashes, 5).first_blocks == (3,)


def test_an_admitted_hit_is_written_into_the_table_from_the_first_block_in_the_window() -> None:
    manager = manager_of(None, 4)
    compute(manager, "a", 20)
    full, windowed = admit(manager, "b", 24)
    assert (full.column, full.block_ids[:5]) == (0, list(manager.blocks("a", 0)))
    assert (windowed.column, windowed.block_ids[0]) == (4, manager.blocks("a", 1)[4])
    assert manager.blocks("b", 1) == tuple(windowed.block_ids)


@pytest.mark.covers("scheduling/cached-counted-once")
def test_blocks_that_other_sequences_reference_cost_no_free_tokens() -> None:
    manager = manager_of(None)
    compute(manager, "a", 20)
    num_free = manager.num_free_blocks
    hit = manager.find(BLOCK_HASHES, 27)
    assert (hit.num_shared_tokens, manager.costs(27, hit)) == ((20,), [7])
    manager.admit("b", 27, hit)
    assert num_free - manager.num_free_blocks == 2


@pytest.mark.covers("kv-cache/idle-blocks-are-free")
def test_idle_blocks_count_as_free_and_cost_as_much_as_others() -> None:
    manager = manager_of(None)
    compute(manager, "a", 20)
    manager.release("a")
    assert (manager.num_free_blocks, manager.num_idle_blocks) == (16, 5)
    hit = manager.find(BLOCK_HASHES, 27)
    assert (hit.num_shared_tokens, manager.costs(27, hit)) == ((0,), [27])
    manager.admit("b", 27, hit)
    assert (manager.num_free_blocks, manager.num_idle_blocks) == (9, 0)


def test_a_hit_fits_where_only_its_shared_blocks_make_it_fit() -> None:
    manager = manager_of(None, num_blocks=6)
    compute(manager, "a", 20)
    assert manager.fits(24, manager.find(BLOCK_HASHES, 24))
    assert not manager.fits(24, manager.find([], 24))
    assert not manager.fits(25, manager.find(BLOCK_HASHES, 25))
    admit(manager, "b", 24)
    assert manager.num_free_blocks == 0


def test_idle_blocks_of_a_hit_are_not_evicted_for_the_rest_of_its_sequence() -> None:
    manager = manager_of(None, num_blocks=6)
    compute(manager, "a", 20)
    manager.release("a")
    hit = manager.find(BLOCK_HASHES, 24)
    (edit,) = manager.admit("b", 24, hit)
    assert tuple(edit.block_ids[:5]) == hit.block_ids[0]
    assert (len(set(edit.block_ids)), manager.num_evictions) == (6, 0)


def test_an_allocation_evicts_idle_blocks_from_the_end_of_the_prefix() -> None:
    manager = manager_of(None, num_blocks=6)
    compute(manager, "a", 20)
    manager.release("a")
    admit(manager, "b", 12, hashes=[])
    assert (manager.num_evictions, manager.num_idle_blocks) == (2, 3)
    assert manager.find(BLOCK_HASHES, 20).num_tokens == 12


def test_prefixes_that_are_not_kept_are_found_only_while_they_are_referenced() -> None:
    manager = manager_of(None, 5, keeps_prefixes=False)
    compute(manager, "a", 20)
    admit(manager, "b", 20)
    manager.release("a")
    assert manager.find(BLOCK_HASHES, 20).num_tokens == 20
    manager.release("b")
    assert (manager.find(BLOCK_HASHES, 20).num_tokens, manager.num_idle_blocks, manager.num_free_blocks) == (0, 0, 32)


def test_caching_goes_on_where_it_ended() -> None:
    manager = manager_of(None)
    admit(manager, "a", 20)
    found = []
    for num_tokens in (3, 8, 8, 19, 20):
        manager.cache_blocks("a", BLOCK_HASHES, num_tokens)
        found.append(manager.find(BLOCK_HASHES, 40).num_tokens)
    assert found == [0, 8, 8, 16, 20]


def test_blocks_computed_twice_are_found_once() -> None:
    manager = manager_of(None)
    admit(manager, "a", 8)
    admit(manager, "b", 8)
    manager.cache_blocks("b", BLOCK_HASHES, 8)
    manager.cache_blocks("a", BLOCK_HASHES, 8)
    assert manager.find(BLOCK_HASHES, 8).block_ids == (manager.blocks("b"),)
    manager.release("a")
    assert manager.num_idle_blocks == 0


def test_uncached_blocks_are_not_found_and_can_be_cached_again() -> None:
    manager = manager_of(None, 40)
    compute(manager, "a", 20)
    manager.uncache_blocks("a", 11)
    assert manager.find(BLOCK_HASHES, 20).num_tokens == 8
    manager.cache_blocks("a", BLOCK_HASHES, 20)
    assert manager.find(BLOCK_HASHES, 20).num_tokens == 20


def test_uncached_hashes_find_no_block_in_any_group_and_others_still_do() -> None:
    manager = manager_of(None, 40)
    compute(manager, "a", 20)
    manager.uncache_hashes([BLOCK_HASHES[3], BLOCK_HASHES[9]])
    assert manager.find(BLOCK_HASHES, 40).num_tokens == 12
    assert [group.block_pool.find(BLOCK_HASHES[3]) for group in manager.groups] == [None, None]
    assert None not in [group.block_pool.find(BLOCK_HASHES[4]) for group in manager.groups]


def test_uncached_blocks_are_free_once_released() -> None:
    manager = manager_of(None, 4)
    compute(manager, "a", 20)
    manager.uncache_blocks("a", 0)
    manager.release("a")
    assert (manager.num_idle_blocks, manager.num_free_blocks) == (0, 32)


def test_a_sequence_reuses_what_another_has_computed_since_its_admission() -> None:
    manager = manager_of(None, 40)
    admit(manager, "b", 20)
    compute(manager, "a", 12)
    edits = manager.reuse_blocks("b", BLOCK_HASHES[:5], 0)
    assert [(edit.group, edit.column) for edit in edits] == [(0, 0), (1, 0), (0, 1), (1, 1), (0, 2), (1, 2)]
    for group in (0, 1):
        assert manager.blocks("b", group)[:3] == manager.blocks("a", group)
        assert len(set(manager.blocks("b", group))) == 5


def test_reusing_blocks_releases_the_sequences_own() -> None:
    manager = manager_of(None)
    admit(manager, "b", 20)
    compute(manager, "a", 12)
    manager.reuse_blocks("b", BLOCK_HASHES[:5], 0)
    assert (manager.num_free_blocks, manager.audit()) == (16 - 5, [])
    manager.release("a")
    assert (manager.num_free_blocks, manager.num_idle_blocks) == (16 - 5, 0)
    manager.release("b")
    assert (manager.num_free_blocks, manager.num_idle_blocks) == (16, 3)


def test_reuse_goes_on_from_what_is_computed_but_not_within_a_block() -> None:
    manager = manager_of(None)
    admit(manager, "b", 20)
    compute(manager, "a", 12)
    assert manager.reuse_blocks("b", BLOCK_HASHES, 5) == []
    assert [edit.column for edit in manager.reuse_blocks("b", BLOCK_HASHES, 8)] == [2]


def test_a_sequence_never_reuses_its_own_blocks() -> None:
    manager = manager_of(None)
    compute(manager, "a", 12)
    assert manager.reuse_blocks("a", BLOCK_HASHES, 0) == []


def test_reuse_ends_where_one_group_has_no_cached_block_and_where_the_table_ends() -> None:
    manager = manager_of(None, 40)
    admit(manager, "b", 16)
    compute(manager, "a", 24)
    uncache(manager, 1, [1])
    assert [edit.column for edit in manager.reuse_blocks("b", BLOCK_HASHES, 0)] == [0, 0]
    assert [edit.column for edit in manager.reuse_blocks("b", BLOCK_HASHES, 8)] == [2, 2, 3, 3]


def test_a_reused_block_keeps_its_hash() -> None:
    manager = manager_of(None)
    admit(manager, "b", 12)
    compute(manager, "a", 8)
    manager.reuse_blocks("b", BLOCK_HASHES, 0)
    manager.cache_blocks("b", BLOCK_HASHES, 12)
    assert manager.find(BLOCK_HASHES, 12).block_ids == (manager.blocks("b"),)
