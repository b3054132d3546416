"""`BlockMap`: block tables and reference counts, as shown to people."""

import pytest

from infer_cache import BlockHashes, ContiguousKVCacheManager, PagedKVCacheManager


def manager_of(*num_blocks: int, windows: list[int | None] | None = None) -> PagedKVCacheManager:
    """A manager of blocks of 2 tokens, by group."""
    return PagedKVCacheManager(num_blocks, 2, windows=windows, max_chunk=4, keeps_prefixes=True)


def admit(manager: PagedKVCacheManager, sequence_id: str, token_ids: list[int]) -> None:
    """Admit a sequence and cache its full blocks."""
    hashes = BlockHashes(2).upto(token_ids, len(token_ids))
    manager.admit(sequence_id, len(token_ids), manager.find(hashes, len(token_ids)))
    manager.cache_blocks(sequence_id, hashes, len(token_ids))


@pytest.mark.covers("kv-cache/owners")
def test_a_block_table_has_the_sequences_blocks_with_one_reference_each() -> None:
    manager = manager_of(8)
    admit(manager, "a", [1, 2, 3])
    admit(manager, "b", [9])
    shown = manager.map_blocks(100)
    assert shown.block_tables == {sequence_id: list(manager.blocks(sequence_id)) for sequence_id in "ab"}
    assert [shown.ref_counts[block_id] for ids in shown.block_tables.values() for block_id in ids] == [1, 1, 1]
    assert (shown.num_blocks, len(shown.ref_counts), sum(shown.ref_counts)) == (8, 8, 3)


@pytest.mark.covers("kv-cache/owners")
def test_a_shared_block_has_a_reference_of_each_sequence() -> None:
    manager = manager_of(8)
    for sequence_id in "abc":
        admit(manager, sequence_id, [1, 2, 3, 4, ord(sequence_id)])
    shown = manager.map_blocks(100)
    assert [shown.ref_counts[block_id] for block_id in shown.block_tables["c"]] == [3, 3, 1]


def test_an_idle_block_is_distinguished_from_other_free_ones() -> None:
    manager = manager_of(4)
    admit(manager, "a", [1, 2, 3])
    first, second = manager.blocks("a")
    manager.release("a")
    shown = manager.map_blocks(100)
    assert (shown.ref_counts[first], shown.ref_counts[second], shown.block_tables) == (-1, 0, {})


def test_the_group_shown_keeps_the_longest_part_of_a_sequence() -> None:
    assert manager_of(5, 7, 6, windows=[2, None, 4]).map_blocks(100).num_blocks == 7
    assert manager_of(5, 6, windows=[2, 4]).map_blocks(100).num_blocks == 6


def test_no_more_reference_counts_are_shown_than_were_asked_for() -> None:
    manager = manager_of(8)
    admit(manager, "a", list(range(16)))
    shown = manager.map_blocks(3)
    assert (shown.ref_counts, shown.num_blocks, len(shown.block_tables["a"])) == ([1, 1, 1], 8, 8)


def test_a_map_does_not_change_with_the_blocks() -> None:
    manager = manager_of(4)
    admit(manager, "a", [1])
    shown = manager.map_blocks(100)
    manager.try_extend("a", 5, first_position=4)
    assert (len(shown.block_tables["a"]), sum(shown.ref_counts)) == (1, 1)


def test_the_blocks_of_a_slot_have_one_reference() -> None:
    manager = ContiguousKVCacheManager(3, 2, 4)
    for sequence_id in "ab":
        manager.admit(sequence_id, 3, manager.find([], 3))
    manager.release("a")
    shown = manager.map_blocks(100)
    assert shown.block_tables == {"b": list(manager.blocks("b"))}
    assert [index for index, count in enumerate(shown.ref_counts) if count] == shown.block_tables["b"]
    assert (shown.num_blocks, len(shown.ref_counts), len(manager.map_blocks(5).ref_counts)) == (6, 6, 5)
