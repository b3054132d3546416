"""Prefixes that are found again: what a hit needs and costs, what is kept, published, taken back and adopted."""

from collections.abc import Iterable, Sequence

import pytest

from infer_cache import BlockHashes, GroupSpec, PagedKVCacheManager, TableEdit

TOKENS = list(range(100, 140))
SIZE = 4
BLOCK_HASHES = BlockHashes(SIZE).upto(TOKENS, len(TOKENS))


def manager_of(
    *windows: int | None, num_blocks: int = 16, keeps_prefixes: bool = True, max_chunk: int | None = None
) -> PagedKVCacheManager:
    groups = [GroupSpec(num_blocks=num_blocks, window=window) for window in windows]
    return PagedKVCacheManager(groups, SIZE, max_chunk=max_chunk, keeps_prefixes=keeps_prefixes)


def admit(
    manager: PagedKVCacheManager, sequence_id: str, num_tokens: int, *, block_hashes: Sequence[bytes] = BLOCK_HASHES
) -> list[TableEdit]:
    """Admit a sequence of the first tokens of `TOKENS`, with what is there of it."""
    return manager.admit(sequence_id, num_tokens, manager.find(block_hashes[: num_tokens // SIZE], num_tokens))


def compute(manager: PagedKVCacheManager, sequence_id: str, num_tokens: int) -> None:
    admit(manager, sequence_id, num_tokens)
    manager.cache_blocks(sequence_id, BLOCK_HASHES, num_tokens)


def forget(manager: PagedKVCacheManager, group: int, columns: Iterable[int]) -> None:
    """Take away names in one group, as an eviction there would."""
    for column in columns:
        block_id = manager.groups[group].blocks.find(BLOCK_HASHES[column])
        assert block_id is not None
        manager.groups[group].blocks.uncache_block(block_id)


def test_the_longest_beginning_that_is_there_is_found() -> None:
    manager = manager_of(None)
    compute(manager, "a", 3 * SIZE)
    hit = manager.find(BLOCK_HASHES, len(TOKENS))
    assert (hit.num_tokens, hit.firsts, hit.blocks) == (12, (0,), (manager.blocks("a"),))
    assert manager.find(BLOCK_HASHES[:2], 11).blocks == (manager.blocks("a")[:2],)


def test_nothing_is_found_of_other_tokens_or_before_publishing() -> None:
    manager = manager_of(None, 4)
    admit(manager, "a", 12)
    assert manager.find(BLOCK_HASHES, 12).num_tokens == 0
    manager.cache_blocks("a", BLOCK_HASHES, 12)
    others = BlockHashes(SIZE, salt="tenant").upto(TOKENS, 12)
    hit = manager.find(others, 12)
    assert (hit.num_tokens, hit.firsts, hit.blocks, hit.num_shared_tokens) == (0, (0, 0), ((), ()), (0, 0))


def test_a_hole_ends_a_hit_in_a_group_that_keeps_everything() -> None:
    manager = manager_of(None)
    compute(manager, "a", 20)
    forget(manager, 0, [2])
    assert manager.find(BLOCK_HASHES, 20).num_tokens == 8


def test_a_partly_computed_block_is_not_published() -> None:
    manager = manager_of(None)
    admit(manager, "a", 12)
    manager.cache_blocks("a", BLOCK_HASHES, 11)
    assert manager.find(BLOCK_HASHES, 12).num_tokens == 8


def test_a_group_with_a_window_needs_only_the_blocks_in_reach() -> None:
    manager = manager_of(None, 5)
    compute(manager, "a", 20)
    forget(manager, 1, range(4))
    hit = manager.find(BLOCK_HASHES, 40)
    assert (hit.num_tokens, hit.firsts) == (20, (0, 4))
    assert [len(blocks) for blocks in hit.blocks] == [5, 1]


@pytest.mark.parametrize(("forgotten", "num_tokens"), [(4, 16), (3, 12), (2, 20)])
def test_a_hit_gets_shorter_until_its_window_is_there(forgotten: int, num_tokens: int) -> None:
    manager = manager_of(None, 6)
    compute(manager, "a", 20)
    forget(manager, 1, [forgotten])
    assert manager.find(BLOCK_HASHES, 40).num_tokens == num_tokens


def test_a_hit_needs_the_windows_of_all_groups() -> None:
    manager = manager_of(4, 12)
    compute(manager, "a", 20)
    forget(manager, 0, [4])
    forget(manager, 1, [1])
    hit = manager.find(BLOCK_HASHES, 40)
    assert (hit.num_tokens, hit.firsts) == (4, (0, 0))


def test_a_fully_cached_prompt_has_its_last_token_and_that_ones_window_in_reach() -> None:
    manager = manager_of(None, 2)
    compute(manager, "a", 20)
    hit = manager.find(BLOCK_HASHES, 20)
    assert (hit.num_tokens, hit.firsts) == (20, (0, 4))
    assert [len(blocks) for blocks in hit.blocks] == [5, 1]
    assert manager.find(BLOCK_HASHES[:5], 21).firsts == (0, 4)


def test_a_fully_cached_prompt_of_one_token_blocks_keeps_what_its_last_token_reads() -> None:
    manager = PagedKVCacheManager([GroupSpec(num_blocks=8, window=2)], 1, keeps_prefixes=True)
    block_hashes = BlockHashes(1).upto(TOKENS, 4)
    manager.admit("a", 4, manager.find(block_hashes, 4))
    manager.cache_blocks("a", block_hashes, 4)
    assert manager.find(block_hashes, 4).firsts == (2,)
    assert manager.find(block_hashes, 5).firsts == (3,)


def test_an_admitted_hit_is_written_into_the_table_from_the_first_block_in_reach() -> None:
    manager = manager_of(None, 4)
    compute(manager, "a", 20)
    full, windowed = admit(manager, "b", 24)
    assert (full.column, full.block_ids[:5]) == (0, list(manager.blocks("a", 0)))
    assert (windowed.column, windowed.block_ids[0]) == (4, manager.blocks("a", 1)[4])
    assert manager.blocks("b", 1) == tuple(windowed.block_ids)


def test_blocks_that_others_hold_cost_no_free_tokens() -> None:
    manager = manager_of(None)
    compute(manager, "a", 20)
    free = manager.num_free_tokens
    hit = manager.find(BLOCK_HASHES, 27)
    assert (hit.num_shared_tokens, manager.costs(27, hit)) == ((20,), [7])
    manager.admit("b", 27, hit)
    assert free - manager.num_free_tokens == 8


def test_idle_blocks_count_as_free_and_cost_what_others_would() -> None:
    manager = manager_of(None)
    compute(manager, "a", 20)
    manager.release("a")
    assert (manager.num_free_blocks, manager.num_free_tokens, manager.num_idle_blocks) == (16, 64, 5)
    hit = manager.find(BLOCK_HASHES, 27)
    assert (hit.num_shared_tokens, manager.costs(27, hit)) == ((0,), [27])
    manager.admit("b", 27, hit)
    assert (manager.num_free_blocks, manager.num_idle_blocks) == (9, 0)


def test_a_hit_fits_where_only_its_held_blocks_make_it_fit() -> None:
    manager = manager_of(None, num_blocks=6)
    compute(manager, "a", 20)
    assert manager.fits(24, manager.find(BLOCK_HASHES, 24))
    assert not manager.fits(24, manager.find([], 24))
    assert not manager.fits(25, manager.find(BLOCK_HASHES, 25))
    admit(manager, "b", 24)
    assert manager.num_free_blocks == 0


def test_idle_blocks_of_a_hit_are_not_evicted_for_its_own_rest() -> None:
    manager = manager_of(None, num_blocks=6)
    compute(manager, "a", 20)
    manager.release("a")
    hit = manager.find(BLOCK_HASHES, 24)
    (edit,) = manager.admit("b", 24, hit)
    assert tuple(edit.block_ids[:5]) == hit.blocks[0]
    assert (len(set(edit.block_ids)), manager.num_evictions) == (6, 0)


def test_pressure_evicts_idle_blocks_from_the_end_of_the_prefix() -> None:
    manager = manager_of(None, num_blocks=6)
    compute(manager, "a", 20)
    manager.release("a")
    admit(manager, "b", 12, block_hashes=[])
    assert (manager.num_evictions, manager.num_idle_blocks) == (2, 3)
    assert manager.find(BLOCK_HASHES, 20).num_tokens == 12


def test_without_keeping_prefixes_are_found_only_while_somebody_holds_them() -> None:
    manager = manager_of(None, 5, keeps_prefixes=False)
    compute(manager, "a", 20)
    admit(manager, "b", 20)
    manager.release("a")
    assert manager.find(BLOCK_HASHES, 20).num_tokens == 20
    manager.release("b")
    assert (manager.find(BLOCK_HASHES, 20).num_tokens, manager.num_idle_blocks, manager.num_free_blocks) == (0, 0, 32)


def test_publishing_goes_on_where_it_ended() -> None:
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
    assert manager.find(BLOCK_HASHES, 8).blocks == (manager.blocks("b"),)
    manager.release("a")
    assert manager.num_idle_blocks == 0


def test_unpublished_blocks_are_found_by_nobody_and_can_be_published_again() -> None:
    manager = manager_of(None, 40)
    compute(manager, "a", 20)
    manager.uncache_blocks("a", 11)
    assert manager.find(BLOCK_HASHES, 20).num_tokens == 8
    manager.cache_blocks("a", BLOCK_HASHES, 20)
    assert manager.find(BLOCK_HASHES, 20).num_tokens == 20


def test_unpublished_blocks_are_free_once_released() -> None:
    manager = manager_of(None, 4)
    compute(manager, "a", 20)
    manager.uncache_blocks("a", 0)
    manager.release("a")
    assert (manager.num_idle_blocks, manager.num_free_blocks) == (0, 32)


def test_a_sequence_adopts_what_another_has_computed_in_the_meantime() -> None:
    manager = manager_of(None, 40)
    admit(manager, "b", 20)
    compute(manager, "a", 12)
    edits = manager.reuse_blocks("b", BLOCK_HASHES[:5], 0)
    assert [(edit.group, edit.column) for edit in edits] == [(0, 0), (1, 0), (0, 1), (1, 1), (0, 2), (1, 2)]
    for group in (0, 1):
        assert manager.blocks("b", group)[:3] == manager.blocks("a", group)
        assert len(set(manager.blocks("b", group))) == 5


def test_adopting_gives_back_the_sequences_own_blocks() -> None:
    manager = manager_of(None)
    admit(manager, "b", 20)
    compute(manager, "a", 12)
    manager.reuse_blocks("b", BLOCK_HASHES[:5], 0)
    assert (manager.num_free_blocks, manager.audit()) == (16 - 5, [])
    manager.release("a")
    assert (manager.num_free_blocks, manager.num_idle_blocks) == (16 - 5, 0)
    manager.release("b")
    assert (manager.num_free_blocks, manager.num_idle_blocks) == (16, 3)


def test_adoption_goes_on_from_what_is_computed_but_not_within_a_block() -> None:
    manager = manager_of(None)
    admit(manager, "b", 20)
    compute(manager, "a", 12)
    assert manager.reuse_blocks("b", BLOCK_HASHES, 5) == []
    assert [edit.column for edit in manager.reuse_blocks("b", BLOCK_HASHES, 8)] == [2]


def test_a_sequence_never_adopts_its_own_blocks() -> None:
    manager = manager_of(None)
    compute(manager, "a", 12)
    assert manager.reuse_blocks("a", BLOCK_HASHES, 0) == []


def test_adoption_ends_where_one_group_has_nothing_and_where_the_table_ends() -> None:
    manager = manager_of(None, 40)
    admit(manager, "b", 16)
    compute(manager, "a", 24)
    forget(manager, 1, [1])
    assert [edit.column for edit in manager.reuse_blocks("b", BLOCK_HASHES, 0)] == [0, 0]
    assert [edit.column for edit in manager.reuse_blocks("b", BLOCK_HASHES, 8)] == [2, 2, 3, 3]


def test_an_adopted_block_is_named_by_who_computed_it() -> None:
    manager = manager_of(None)
    admit(manager, "b", 12)
    compute(manager, "a", 8)
    manager.reuse_blocks("b", BLOCK_HASHES, 0)
    manager.cache_blocks("b", BLOCK_HASHES, 12)
    assert manager.find(BLOCK_HASHES, 12).blocks == (manager.blocks("b"),)
