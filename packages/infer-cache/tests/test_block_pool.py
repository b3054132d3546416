"""Blocks with several holders and with names: who keeps what, what is found, what is evicted first."""

import pytest

from infer_cache import OutOfBlocksError
from infer_cache.block_pool import BlockPool


def named_blocks(block_hashes: bytes, *, num_blocks: int = 8, keeps_idle: bool = True) -> tuple[BlockPool, list[int]]:
    """A pool in which one holder has a block of each name, one letter each."""
    blocks = BlockPool(num_blocks, keeps_idle=keeps_idle)
    held = blocks.allocate(len(block_hashes))
    for block_id, letter in zip(held, block_hashes, strict=True):
        blocks.cache_block(block_id, bytes([letter]))
    return blocks, held


def found(blocks: BlockPool, block_hashes: bytes) -> bytes:
    return bytes(letter for letter in block_hashes if blocks.find(bytes([letter])) is not None)


def test_a_block_is_free_once_its_last_holder_has_dropped_it() -> None:
    blocks = BlockPool(4, keeps_idle=True)
    given = blocks.allocate(2)
    blocks.add_reference(given)
    blocks.release(given)
    assert [blocks.is_referenced(block_id) for block_id in given] == [True, True]
    blocks.release(given)
    assert [blocks.is_referenced(block_id) for block_id in given] == [False, False]
    assert (blocks.num_free, blocks.num_idle, blocks.allocator.num_free) == (4, 0, 4)


def test_dropping_what_nobody_holds_is_refused() -> None:
    blocks, held = named_blocks(b"x")
    blocks.release(held)
    with pytest.raises(ValueError, match=f"`block_id` {held[0]} is held by nobody"):
        blocks.release(held)


def test_a_named_block_is_found_while_it_is_held_and_when_it_is_idle() -> None:
    blocks, held = named_blocks(b"x")
    assert blocks.find(b"x") == held[0]
    blocks.release(held)
    assert blocks.find(b"x") == held[0]
    assert (blocks.num_idle, blocks.num_free, blocks.allocator.num_free) == (1, 8, 7)


def test_an_idle_block_that_is_held_again_is_no_longer_free() -> None:
    blocks, held = named_blocks(b"x")
    blocks.release(held)
    blocks.add_reference(held)
    assert (blocks.num_idle, blocks.num_free) == (0, 7)
    blocks.release(held)
    assert blocks.num_idle == 1


def test_holding_a_free_block_is_refused_and_changes_nothing() -> None:
    blocks, held = named_blocks(b"x")
    with pytest.raises(ValueError, match=f"`block_id` {held[0] + 1} is free"):
        blocks.add_reference([*held, held[0] + 1])
    blocks.release(held)
    assert not blocks.is_referenced(held[0])


def test_without_idle_blocks_a_name_goes_with_the_last_holder() -> None:
    blocks, held = named_blocks(b"x", keeps_idle=False)
    blocks.add_reference(held)
    blocks.release(held)
    assert blocks.find(b"x") == held[0]
    blocks.release(held)
    assert blocks.find(b"x") is None
    assert (blocks.num_idle, blocks.allocator.num_free) == (0, 8)


def test_a_name_stays_with_the_first_block_that_had_it() -> None:
    blocks, held = named_blocks(b"x")
    (late,) = blocks.allocate(1)
    blocks.cache_block(late, b"x")
    assert blocks.find(b"x") == held[0]
    blocks.release([late])
    assert blocks.num_idle == 0


def test_a_block_keeps_its_first_name() -> None:
    blocks, held = named_blocks(b"x")
    blocks.cache_block(held[0], b"y")
    assert found(blocks, b"xy") == b"x"


def test_free_blocks_are_given_before_idle_ones() -> None:
    blocks, held = named_blocks(b"uvw")
    blocks.release(held)
    blocks.allocate(5)
    assert found(blocks, b"uvw") == b"uvw"
    assert blocks.num_evictions == 0


def test_the_end_of_a_prefix_is_evicted_before_its_beginning() -> None:
    blocks, held = named_blocks(b"uvw")
    blocks.release(held)
    for num_evictions, left in enumerate((b"uv", b"u", b""), start=1):
        blocks.allocate(5 if num_evictions == 1 else 0)
        blocks.allocate(1)
        assert found(blocks, b"uvw") == left
        assert blocks.num_evictions == num_evictions


def test_what_nobody_held_for_longest_is_evicted_first() -> None:
    blocks, (first, second, third) = named_blocks(b"uvw")
    for block_id in (second, first, third):
        blocks.release([block_id])
    blocks.add_reference([second])
    blocks.release([second])
    blocks.allocate(6)
    assert found(blocks, b"uvw") == b"vw"
    blocks.allocate(1)
    assert found(blocks, b"uvw") == b"v"


def test_an_evicted_block_has_no_name_for_its_next_holder() -> None:
    blocks, held = named_blocks(b"x", num_blocks=1)
    blocks.release(held)
    assert blocks.allocate(1) == held
    assert blocks.find(b"x") is None
    blocks.release(held)
    assert blocks.num_idle == 0


def test_held_blocks_are_never_evicted_and_exhaustion_changes_nothing() -> None:
    blocks, held = named_blocks(b"uvw", num_blocks=4)
    blocks.release(held[1:])
    with pytest.raises(OutOfBlocksError, match="asked for 4 blocks but 3 of 4 are free"):
        blocks.allocate(4)
    assert found(blocks, b"uvw") == b"uvw"
    assert (blocks.num_evictions, blocks.num_free, blocks.num_idle) == (0, 3, 2)


def test_a_forgotten_block_stays_with_its_holder() -> None:
    blocks, held = named_blocks(b"x")
    blocks.uncache_block(held[0])
    assert blocks.find(b"x") is None
    assert blocks.is_referenced(held[0])
    blocks.release(held)
    assert (blocks.num_idle, blocks.allocator.num_free) == (0, 8)


def test_a_forgotten_idle_block_is_free() -> None:
    blocks, held = named_blocks(b"x")
    blocks.release(held)
    blocks.uncache_block(held[0])
    blocks.uncache_block(held[0] + 1)
    assert (blocks.num_idle, blocks.allocator.num_free) == (0, 8)


def test_idle_blocks_are_no_leak() -> None:
    blocks, held = named_blocks(b"uv")
    blocks.release(held[:1])
    assert blocks.audit(held[1:]) == []
    assert blocks.audit([]) == held[1:]


def test_reclaim_frees_leaks_with_their_names_and_holders() -> None:
    blocks, held = named_blocks(b"uvw")
    blocks.release(held[:1])
    assert blocks.reclaim(held[1:2]) == 1
    assert found(blocks, b"uvw") == b"uv"
    assert not blocks.is_referenced(held[2])
    assert (blocks.num_free, blocks.audit(held[1:2])) == (7, [])


def test_a_block_knows_who_allocated_it() -> None:
    blocks, held = named_blocks(b"x")
    blocks.add_reference(held)
    assert blocks.allocator.owner_of(held[0]) == "a"
