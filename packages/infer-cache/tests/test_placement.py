"""Which free blocks are allocated: consecutive ones wherever possible, with room to grow."""

import random

from infer_cache import BlockAllocator, PagedKVCacheManager


def test_blocks_allocated_together_are_consecutive() -> None:
    allocator = BlockAllocator(100)
    for _ in range(5):
        block_ids = allocator.allocate(7)
        assert block_ids == list(range(block_ids[0], block_ids[0] + 7))


def test_the_blocks_after_a_block_ids_one_are_allocated_where_they_are_free() -> None:
    allocator = BlockAllocator(10)
    block_ids = allocator.allocate(2)
    assert allocator.allocate(3, after=block_ids[-1]) == [block_ids[-1] + 1, block_ids[-1] + 2, block_ids[-1] + 3]


def test_growth_goes_on_consecutively_past_a_block_that_is_taken() -> None:
    allocator = BlockAllocator(4)
    allocator.allocate(4)
    allocator.free([0, 2, 3])
    assert allocator.allocate(3, after=0) == [2, 3, 0]


def test_blocks_after_the_last_id_are_allocated_elsewhere() -> None:
    allocator = BlockAllocator(3)
    allocator.allocate(3)
    allocator.free([0])
    assert allocator.allocate(1, after=2) == [0]


def test_sequences_that_grow_side_by_side_keep_consecutive_tables() -> None:
    manager = PagedKVCacheManager([512], 16)
    for sequence in range(16):
        manager.admit(str(sequence), 1, manager.find([], 1))
    for num_tokens in range(2, 16 * 16 + 1):
        for sequence in range(16):
            manager.try_extend(str(sequence), num_tokens, first_position=num_tokens - 1)
    for sequence in range(16):
        blocks = manager.blocks(str(sequence))
        assert blocks == tuple(range(blocks[0], blocks[0] + 16))


def test_growth_goes_on_consecutively_after_cached_blocks() -> None:
    manager, hashes = PagedKVCacheManager([64], 1, keeps_prefixes=True), [b"x", b"y"]
    manager.admit("a", 2, manager.find([], 2))
    manager.cache_blocks("a", hashes, 2)
    manager.release("a")
    (edit,) = manager.admit("b", 9, manager.find(hashes, 9))
    assert edit.block_ids == list(range(edit.block_ids[0], edit.block_ids[0] + 9))


def test_neighbours_freed_in_any_order_become_one_extent() -> None:
    allocator = BlockAllocator(64)
    block_ids = allocator.allocate(64)
    random.Random(0).shuffle(block_ids)  # noqa: S311 - an order, no secret
    for block_id in block_ids:
        allocator.free([block_id])
    assert allocator.allocate(64) == list(range(64))


def test_scattered_free_blocks_serve_an_allocation_longer_than_any_extent() -> None:
    allocator = BlockAllocator(9)
    allocator.allocate(9)
    allocator.free(range(0, 9, 2))
    assert sorted(allocator.allocate(5)) == [0, 2, 4, 6, 8]


def test_equal_histories_allocate_equal_blocks() -> None:
    def history() -> list[int]:
        allocator = BlockAllocator(32)
        first, second = allocator.allocate(5), allocator.allocate(9)
        allocator.free(first[1:4])
        return first + second + allocator.allocate(12, after=second[-1])

    assert history() == history()
