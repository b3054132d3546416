"""Who holds which blocks, as shown to people."""

from infer_cache import BlockHashes, ContiguousKVCacheManager, GroupSpec, PagedKVCacheManager


def names_of(token_ids: list[int], *, block_size: int) -> list[bytes]:
    return BlockHashes(block_size, salt="").upto(token_ids, len(token_ids))


def paged(*groups: GroupSpec, keeps_prefixes: bool = True) -> PagedKVCacheManager:
    return PagedKVCacheManager(groups, 2, max_chunk=4, keeps_prefixes=keeps_prefixes)


def admit(manager: PagedKVCacheManager, sequence_id: str, token_ids: list[int]) -> None:
    """Admit a sequence and let its full blocks be found."""
    block_hashes = names_of(token_ids, block_size=2)
    manager.admit(sequence_id, len(token_ids), manager.find(block_hashes, len(token_ids)))
    manager.cache_blocks(sequence_id, block_hashes, len(token_ids))


def test_a_sequences_blocks_are_those_of_its_table() -> None:
    manager = paged(GroupSpec(num_blocks=8))
    admit(manager, "a", [1, 2, 3])
    admit(manager, "b", [9])
    shown = manager.map_blocks(100)
    assert shown.held_by == {name: list(manager.blocks(name)) for name in "ab"}
    assert [shown.holders[block_id] for block_ids in shown.held_by.values() for block_id in block_ids] == [1, 1, 1]
    assert (shown.num_blocks, len(shown.holders), sum(shown.holders)) == (8, 8, 3)


def test_a_shared_block_has_as_many_holders_as_sequences_hold_it() -> None:
    manager = paged(GroupSpec(num_blocks=8))
    for name in "abc":
        admit(manager, name, [1, 2, 3, 4, ord(name)])
    shown = manager.map_blocks(100)
    assert [shown.holders[block_id] for block_id in shown.held_by["c"]] == [3, 3, 1]


def test_a_block_that_is_kept_for_its_content_has_no_holder_and_is_not_free() -> None:
    manager = paged(GroupSpec(num_blocks=4))
    admit(manager, "a", [1, 2, 3])
    first, second = manager.blocks("a")
    manager.release("a")
    shown = manager.map_blocks(100)
    assert (shown.holders[first], shown.holders[second], shown.held_by) == (-1, 0, {})


def test_the_group_shown_keeps_the_longest_part_of_a_sequence() -> None:
    narrow, wide, whole = (GroupSpec(num_blocks=size, window=window) for size, window in ((5, 2), (6, 4), (7, None)))
    assert paged(narrow, whole, wide).map_blocks(100).num_blocks == 7
    assert paged(narrow, wide).map_blocks(100).num_blocks == 6


def test_no_more_blocks_are_shown_than_were_asked_for() -> None:
    manager = paged(GroupSpec(num_blocks=8))
    admit(manager, "a", list(range(16)))
    shown = manager.map_blocks(3)
    assert (shown.holders, shown.num_blocks, len(shown.held_by["a"])) == ([1, 1, 1], 8, 8)


def test_what_is_shown_stays_as_it_was() -> None:
    manager = paged(GroupSpec(num_blocks=4))
    admit(manager, "a", [1])
    shown = manager.map_blocks(100)
    manager.try_extend("a", 5, first_position=4)
    assert (len(shown.held_by["a"]), sum(shown.holders)) == (1, 1)


def test_a_slots_blocks_have_one_holder() -> None:
    manager = ContiguousKVCacheManager(3, 2, 4)
    for name in "ab":
        manager.admit(name, 3, manager.find([], 3))
    manager.release("a")
    shown = manager.map_blocks(100)
    assert shown.held_by == {"b": list(manager.blocks("b"))}
    assert [index for index, count in enumerate(shown.holders) if count] == shown.held_by["b"]
    assert (shown.num_blocks, len(shown.holders), len(manager.map_blocks(5).holders)) == (6, 6, 5)
