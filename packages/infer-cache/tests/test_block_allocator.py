"""`BlockAllocator`: allocation, exhaustion, misuse, leaks."""

from random import Random

import pytest

from infer_cache import BlockAllocator, OutOfBlocksError
from infer_proofs.kernels.python_instructions import num_instructions


def test_allocated_blocks_are_distinct_and_not_free() -> None:
    allocator = BlockAllocator(8)
    block_ids = allocator.allocate(3) + allocator.allocate(5)
    assert sorted(block_ids) == list(range(8))
    assert (allocator.num_free, allocator.num_blocks) == (0, 8)


def test_allocating_no_blocks_gives_an_empty_list_even_from_a_full_pool() -> None:
    allocator = BlockAllocator(1)
    assert allocator.allocate(0) == []
    allocator.allocate(1)
    assert allocator.allocate(0, after=0) == []


@pytest.mark.covers("kv-cache/all-or-nothing")
def test_exhaustion_is_an_error_that_leaves_nothing_changed() -> None:
    allocator = BlockAllocator(4)
    block_ids = allocator.allocate(3)
    with pytest.raises(OutOfBlocksError, match="asked for 2 blocks but 1 of 4 are free"):
        allocator.allocate(2, after=block_ids[-1])
    assert allocator.num_free == 1
    assert allocator.audit([]) == sorted(block_ids)
    assert len(allocator.allocate(1)) == 1


def test_a_pool_of_no_blocks_is_legal() -> None:
    allocator = BlockAllocator(0)
    assert allocator.allocate(0) == []
    assert allocator.audit([]) == []
    with pytest.raises(OutOfBlocksError, match="0 of 0"):
        allocator.allocate(1)


@pytest.mark.parametrize("num_blocks", [-1, -7])
def test_a_negative_pool_is_refused(num_blocks: int) -> None:
    with pytest.raises(ValueError, match=f"`num_blocks` is {num_blocks}"):
        BlockAllocator(num_blocks)


def test_a_negative_count_is_refused() -> None:
    with pytest.raises(ValueError, match="`count` is -1"):
        BlockAllocator(2).allocate(-1)


def test_a_freed_block_can_be_allocated_again() -> None:
    allocator = BlockAllocator(1)
    allocator.free(allocator.allocate(1))
    assert allocator.num_free == 1
    assert allocator.allocate(1) == [0]


@pytest.mark.covers("kv-cache/wrong-free")
def test_a_double_free_is_refused() -> None:
    allocator = BlockAllocator(4)
    block_ids = allocator.allocate(2)
    allocator.free(block_ids)
    with pytest.raises(ValueError, match=f"`block_id` {block_ids[0]} is not allocated"):
        allocator.free(block_ids)
    assert allocator.num_free == 4


@pytest.mark.covers("kv-cache/wrong-free")
def test_the_same_id_twice_in_one_free_is_refused_and_frees_nothing() -> None:
    allocator = BlockAllocator(4)
    first, second = allocator.allocate(2)
    with pytest.raises(ValueError, match=f"block {second} twice"):
        allocator.free([first, second, second])
    assert allocator.num_free == 2
    assert allocator.audit([]) == sorted([first, second])


@pytest.mark.covers("kv-cache/wrong-free")
@pytest.mark.parametrize("unknown", [-1, 4, 1000])
def test_an_unknown_id_is_refused_and_frees_nothing(unknown: int) -> None:
    allocator = BlockAllocator(4)
    block_ids = allocator.allocate(4)
    with pytest.raises(ValueError, match=f"`block_id` {unknown} is unknown"):
        allocator.free([*block_ids, unknown])
    assert allocator.num_free == 0


def test_a_free_block_among_allocated_ones_is_refused_and_frees_nothing() -> None:
    allocator = BlockAllocator(4)
    block_ids = allocator.allocate(3)
    (free,) = set(range(4)) - set(block_ids)
    with pytest.raises(ValueError, match=f"`block_id` {free} is not allocated"):
        allocator.free([*block_ids, free])
    assert allocator.num_free == 1


@pytest.mark.covers("kv-cache/audit")
def test_audit_returns_allocated_blocks_that_are_not_reachable() -> None:
    allocator = BlockAllocator(8)
    leaked = allocator.allocate(3)
    kept = allocator.allocate(2)
    assert allocator.audit(kept) == sorted(leaked)
    assert allocator.audit(kept + leaked) == []


@pytest.mark.covers("kv-cache/reclaim")
def test_reclaim_frees_leaked_blocks_and_nothing_else() -> None:
    allocator = BlockAllocator(8)
    allocator.allocate(3)
    kept = allocator.allocate(2)
    assert allocator.reclaim(kept) == 3
    assert allocator.num_free == 6
    assert allocator.audit([]) == sorted(kept)
    assert allocator.reclaim(kept) == 0


@pytest.mark.covers("kv-cache/constant-time")
def test_a_block_takes_the_same_in_a_large_pool() -> None:
    """Half of each pool is allocated, in pieces whose neighbours come and go."""

    def most_instructions(num_blocks: int) -> int:
        allocator, chosen = BlockAllocator(num_blocks), Random(0)  # noqa: S311 - a test's choices
        held = [allocator.allocate(1 + number % 3) for number in range(num_blocks // 4)]

        def exchange() -> None:
            freed = held.pop(chosen.randrange(len(held)))
            allocator.free(freed)
            held.append(allocator.allocate(len(freed), after=chosen.choice(held)[-1]))

        return max(num_instructions(exchange, of="infer_") for _ in range(300))

    assert 100 < most_instructions(20_000) <= 1.2 * most_instructions(200)
