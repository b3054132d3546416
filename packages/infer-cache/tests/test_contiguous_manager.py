"""`ContiguousKVCacheManager`: one slot of consecutive blocks for each sequence, all of it from the start."""

import pytest

from infer_cache import BlockHashes, ContiguousKVCacheManager, OutOfBlocksError, UnknownSequenceError


def manager_of(num_slots: int = 3) -> ContiguousKVCacheManager:
    """A manager of slots of 4 blocks of 2 tokens."""
    return ContiguousKVCacheManager(num_slots, 4, 2)


def admit(manager: ContiguousKVCacheManager, sequence_id: str, num_tokens: int = 1) -> tuple[int, ...]:
    """Admit a sequence and return the blocks that its table has from column 0 on."""
    (edit,) = manager.admit(sequence_id, num_tokens, manager.find([], num_tokens))
    assert (edit.group, edit.column) == (0, 0)
    return tuple(edit.block_ids)


@pytest.mark.covers("kv-cache/contiguous-slots")
def test_a_slot_is_a_fixed_range_of_consecutive_blocks() -> None:
    manager = manager_of()
    slots = [admit(manager, sequence_id) for sequence_id in "abc"]
    assert sorted(slots) == [(0, 1, 2, 3), (4, 5, 6, 7), (8, 9, 10, 11)]
    assert [manager.blocks(sequence_id) for sequence_id in "abc"] == slots


@pytest.mark.covers("kv-cache/contiguous-slots")
def test_a_slot_has_room_for_all_of_a_sequence_from_the_start() -> None:
    manager = manager_of()
    admit(manager, "a")
    assert manager.capacity("a") == 8
    assert [manager.try_extend("a", num_tokens, first_position=0) for num_tokens in (1, 8)] == [[], []]
    assert manager.try_extend("a", 9, first_position=8) is None


@pytest.mark.covers("kv-cache/slot-reuse")
def test_a_freed_slot_is_used_again_from_its_first_block() -> None:
    manager = manager_of(1)
    first = admit(manager, "a", 8)
    manager.release("a")
    assert admit(manager, "b") == first


def test_no_more_sequences_than_slots() -> None:
    manager = manager_of(2)
    for sequence_id in "ab":
        admit(manager, sequence_id)
    assert not manager.fits(1, manager.find([], 1))
    with pytest.raises(OutOfBlocksError):
        admit(manager, "c")
    assert not manager.holds("c")


@pytest.mark.parametrize(("num_tokens", "fits"), [(1, True), (8, True), (9, False)])
def test_a_sequence_longer_than_a_slot_does_not_fit(num_tokens: int, fits: bool) -> None:  # noqa: FBT001 - parameters
    manager = manager_of()
    assert manager.fits(num_tokens, manager.find([], num_tokens)) is fits
    if not fits:
        with pytest.raises(OutOfBlocksError):
            admit(manager, "a", num_tokens)
        assert manager.num_free_blocks == 12


@pytest.mark.covers("scheduling/admission-slots")
def test_the_budget_is_slots_and_reserves_none() -> None:
    manager = manager_of()
    admit(manager, "a")
    budget = manager.budget(0.9)
    costs = manager.costs(8, manager.find([], 8))
    assert [budget.take(costs) for _ in range(3)] == [True, True, False]


def test_free_memory_is_counted_in_whole_slots() -> None:
    manager = manager_of()
    admit(manager, "a")
    assert (manager.num_blocks, manager.num_free_blocks) == (12, 8)
    assert manager.usage == pytest.approx(1 / 3)
    assert (manager.num_idle_blocks, manager.num_evictions, manager.block_size) == (0, 0, 2)


def test_no_slots_are_legal_and_never_used() -> None:
    manager = manager_of(0)
    assert (manager.num_blocks, manager.num_free_blocks, manager.audit()) == (0, 0, [])
    assert not manager.fits(1, manager.find([], 1))


def test_no_block_is_ever_found_or_reused() -> None:
    manager, hashes = manager_of(), BlockHashes(2).upto([1, 2, 3, 4], 4)
    admit(manager, "a", 4)
    manager.cache_blocks("a", hashes, 4)
    hit = manager.find(hashes, 4)
    assert (hit.num_tokens, hit.block_ids) == (0, ((),))
    manager.admit("b", 4, hit)
    assert manager.reuse_blocks("b", hashes, 0) == []
    manager.uncache_blocks("a", 0)
    manager.uncache_hashes(hashes)
    assert (manager.num_free_blocks, manager.num_idle_blocks) == (4, 0)


def test_a_sequence_has_one_slot() -> None:
    manager = manager_of()
    admit(manager, "a")
    with pytest.raises(ValueError, match="'a' has a slot already"):
        admit(manager, "a")
    assert manager.num_free_blocks == 8


def test_an_unknown_sequence_is_an_error_that_names_it() -> None:
    manager = manager_of()
    for use in (manager.release, manager.blocks, manager.capacity):
        with pytest.raises(UnknownSequenceError, match="`sequence_id` 'a' has no blocks"):
            use("a")
    with pytest.raises(UnknownSequenceError):
        manager.try_extend("a", 1, first_position=0)


def test_a_sequence_is_released_once() -> None:
    manager = manager_of()
    admit(manager, "a")
    manager.release("a")
    assert not manager.holds("a")
    with pytest.raises(UnknownSequenceError):
        manager.release("a")
    assert manager.num_free_blocks == 12


@pytest.mark.parametrize(
    ("num_slots", "blocks_per_slot", "block_size", "name"),
    [(-1, 4, 2, "num_slots"), (3, 0, 2, "blocks_per_slot"), (3, 4, 0, "block_size")],
)
def test_impossible_sizes_are_refused(num_slots: int, blocks_per_slot: int, block_size: int, name: str) -> None:
    with pytest.raises(ValueError, match=f"`{name}` is"):
        ContiguousKVCacheManager(num_slots, blocks_per_slot, block_size)
