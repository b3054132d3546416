"""Who owns which block: exhaustion, misuse and leaks of `BlockAllocator`."""

import pytest

from infer_cache import BlockAllocator, OutOfBlocksError


def test_allocated_blocks_are_distinct_and_no_longer_free() -> None:
    allocator = BlockAllocator(8)
    given = allocator.allocate(3) + allocator.allocate(5)
    assert sorted(given) == list(range(8))
    assert allocator.num_free == 0
    assert allocator.num_blocks == 8


def test_allocating_nothing_gives_an_empty_list_even_from_a_full_pool() -> None:
    allocator = BlockAllocator(1)
    assert allocator.allocate(0) == []
    allocator.allocate(1)
    assert allocator.allocate(0, after=0) == []


def test_exhaustion_is_an_error_that_leaves_nothing_changed() -> None:
    allocator = BlockAllocator(4)
    first = allocator.allocate(3)
    with pytest.raises(OutOfBlocksError, match="asked for 2 blocks but 1 of 4 are free") as caught:
        allocator.allocate(2, after=first[-1])
    assert (caught.value.num_asked, caught.value.num_free) == (2, 1)
    assert allocator.num_free == 1
    assert allocator.blocks_of("b") == []
    assert len(allocator.allocate(1)) == 1


def test_a_pool_of_no_blocks_gives_nothing_but_nothing() -> None:
    allocator = BlockAllocator(0)
    assert allocator.allocate(0) == []
    assert allocator.can_allocate(0)
    assert not allocator.can_allocate(1)
    assert allocator.audit([]) == []
    with pytest.raises(OutOfBlocksError, match="0 of 0"):
        allocator.allocate(1)


def test_can_allocate_says_whether_allocate_would_succeed() -> None:
    allocator = BlockAllocator(3)
    allocator.allocate(1)
    assert [allocator.can_allocate(count) for count in range(5)] == [True, True, True, False, False]


@pytest.mark.parametrize("num_blocks", [-1, -7])
def test_a_negative_pool_is_refused(num_blocks: int) -> None:
    with pytest.raises(ValueError, match=f"`num_blocks` is {num_blocks}"):
        BlockAllocator(num_blocks)


def test_a_negative_count_is_refused() -> None:
    with pytest.raises(ValueError, match="`count` is -1"):
        BlockAllocator(2).allocate(-1)


def test_a_freed_block_can_be_given_again() -> None:
    allocator = BlockAllocator(1)
    allocator.free(allocator.allocate(1))
    assert allocator.num_free == 1
    assert allocator.allocate(1) == [0]
    assert allocator.owner_of(0) == "b"


def test_a_double_free_is_refused() -> None:
    allocator = BlockAllocator(4)
    given = allocator.allocate(2)
    allocator.free(given)
    with pytest.raises(ValueError, match=f"`block_id` {given[0]} is not allocated"):
        allocator.free(given)
    assert allocator.num_free == 4


def test_the_same_id_twice_in_one_free_is_refused_and_frees_nothing() -> None:
    allocator = BlockAllocator(4)
    first, second = allocator.allocate(2)
    with pytest.raises(ValueError, match=f"block {second} twice"):
        allocator.free([first, second, second])
    assert allocator.blocks_of("a") == [first, second]


@pytest.mark.parametrize("unknown", [-1, 4, 1000])
def test_an_id_that_was_never_given_is_refused_and_frees_nothing(unknown: int) -> None:
    allocator = BlockAllocator(4)
    given = allocator.allocate(4)
    with pytest.raises(ValueError, match=f"`block_id` {unknown} is unknown"):
        allocator.free([*given, unknown])
    assert allocator.num_free == 0


def test_a_free_block_in_a_batch_is_refused_and_the_others_stay_allocated() -> None:
    allocator = BlockAllocator(4)
    given = allocator.allocate(3)
    (left_over,) = set(range(4)) - set(given)
    with pytest.raises(ValueError, match=f"`block_id` {left_over} is not allocated"):
        allocator.free([*given, left_over])
    assert allocator.num_free == 1


def test_owners_are_tracked_through_frees() -> None:
    allocator = BlockAllocator(6)
    mine, theirs = allocator.allocate(2), allocator.allocate(3)
    allocator.free(mine[:1])
    assert allocator.blocks_of("mine") == mine[1:]
    assert [allocator.owner_of(block_id) for block_id in theirs] == ["theirs"] * 3
    with pytest.raises(ValueError, match="not allocated"):
        allocator.owner_of(mine[0])


def test_an_owner_may_be_anything_hashable() -> None:
    allocator = BlockAllocator(2)
    given = allocator.allocate(1)
    assert allocator.owner_of(given[0]) is None
    assert allocator.blocks_of(None) == given


def test_a_leak_is_found_by_owner() -> None:
    allocator = BlockAllocator(8)
    lost = allocator.allocate(3)
    allocator.allocate(2)
    assert allocator.blocks_of("gone") == sorted(lost)


def test_a_leak_is_found_by_reachability() -> None:
    allocator = BlockAllocator(8)
    lost = allocator.allocate(3)
    kept = allocator.allocate(2)
    assert allocator.audit(kept) == sorted(lost)
    assert allocator.audit(kept + lost) == []


def test_reclaim_frees_what_lost_tracking_left_behind_and_nothing_else() -> None:
    allocator = BlockAllocator(8)
    allocator.allocate(3)
    kept = allocator.allocate(2)
    assert allocator.reclaim(kept) == 3
    assert allocator.num_free == 6
    assert allocator.blocks_of("b") == sorted(kept)
    assert allocator.reclaim(kept) == 0
