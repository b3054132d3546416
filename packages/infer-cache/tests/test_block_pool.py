"""`BlockPool`: reference counts, what is found by its hash, what is evicted first."""

import pytest

from infer_cache import OutOfBlocksError
from infer_cache.block_pool import BlockPool


def pool_with_cached(hashes: bytes, *, num_blocks: int = 8, keeps_idle: bool = True) -> tuple[BlockPool, list[int]]:
    """A pool, and its blocks with one reference that are cached under these hashes of one letter each."""
    pool = BlockPool(num_blocks, keeps_idle=keeps_idle)
    block_ids = pool.allocate(len(hashes))
    for block_id, letter in zip(block_ids, hashes, strict=True):
        pool.cache_block(block_id, bytes([letter]))
    return pool, block_ids


def found(pool: BlockPool, hashes: bytes) -> bytes:
    """Those of the hashes under which a block is cached."""
    return bytes(letter for letter in hashes if pool.find(bytes([letter])) is not None)


@pytest.mark.covers("kv-cache/shared-prefixes")
def test_a_block_is_free_once_its_last_reference_is_released() -> None:
    pool = BlockPool(4, keeps_idle=True)
    block_ids = pool.allocate(2)
    pool.add_reference(block_ids)
    pool.release(block_ids)
    assert [pool.is_referenced(block_id) for block_id in block_ids] == [True, True]
    pool.release(block_ids)
    assert [pool.is_referenced(block_id) for block_id in block_ids] == [False, False]
    assert (pool.num_free, pool.num_idle) == (4, 0)


def test_releasing_a_block_without_references_is_refused() -> None:
    pool, block_ids = pool_with_cached(b"x")
    pool.release(block_ids)
    with pytest.raises(ValueError, match=f"`block_id` {block_ids[0]} has no references"):
        pool.release(block_ids)


@pytest.mark.covers("kv-cache/owners")
def test_a_reference_is_given_back_by_its_holder_alone() -> None:
    pool = BlockPool(4, keeps_idle=False)
    (block_id,) = pool.allocate(1, holder="a")
    pool.add_reference([block_id], holder="b")
    with pytest.raises(ValueError, match=r"has no references of 'c', but of \['a', 'b'\]"):
        pool.release([block_id], holder="c")
    pool.release([block_id], holder="a")
    assert pool.holders(block_id) == ("b",)
    pool.release([block_id], holder="b")
    assert (pool.holders(block_id), pool.num_free) == ((), 4)


def test_a_cached_block_is_found_while_it_is_referenced_and_while_it_is_idle() -> None:
    pool, block_ids = pool_with_cached(b"x")
    assert pool.find(b"x") == block_ids[0]
    pool.release(block_ids)
    assert pool.find(b"x") == block_ids[0]
    assert (pool.num_idle, pool.num_free) == (1, 8)


def test_an_idle_block_that_is_referenced_again_is_not_free() -> None:
    pool, block_ids = pool_with_cached(b"x")
    pool.release(block_ids)
    pool.add_reference(block_ids)
    assert (pool.num_idle, pool.num_free) == (0, 7)
    pool.release(block_ids)
    assert pool.num_idle == 1


def test_a_reference_to_a_free_block_is_refused_and_changes_nothing() -> None:
    pool, block_ids = pool_with_cached(b"x")
    with pytest.raises(ValueError, match=f"`block_id` {block_ids[0] + 1} is free"):
        pool.add_reference([*block_ids, block_ids[0] + 1])
    pool.release(block_ids)
    assert not pool.is_referenced(block_ids[0])


def test_without_idle_blocks_a_block_loses_its_hash_with_its_last_reference() -> None:
    pool, block_ids = pool_with_cached(b"x", keeps_idle=False)
    pool.add_reference(block_ids)
    pool.release(block_ids)
    assert pool.find(b"x") == block_ids[0]
    pool.release(block_ids)
    assert pool.find(b"x") is None
    assert (pool.num_idle, pool.num_free) == (0, 8)


def test_a_hash_stays_with_the_first_block_that_had_it() -> None:
    pool, block_ids = pool_with_cached(b"x")
    (late,) = pool.allocate(1)
    pool.cache_block(late, b"x")
    assert pool.find(b"x") == block_ids[0]
    pool.release([late])
    assert pool.num_idle == 0


def test_a_block_keeps_its_first_hash() -> None:
    pool, block_ids = pool_with_cached(b"x")
    pool.cache_block(block_ids[0], b"y")
    assert found(pool, b"xy") == b"x"


def test_other_free_blocks_are_allocated_before_idle_ones() -> None:
    pool, block_ids = pool_with_cached(b"uvw")
    pool.release(block_ids)
    pool.allocate(5)
    assert found(pool, b"uvw") == b"uvw"
    assert pool.num_evictions == 0


def test_the_end_of_a_prefix_is_evicted_before_its_beginning() -> None:
    pool, block_ids = pool_with_cached(b"uvw")
    pool.release(block_ids)
    pool.allocate(5)
    for num_evictions, left in enumerate((b"uv", b"u", b""), start=1):
        pool.allocate(1)
        assert found(pool, b"uvw") == left
        assert pool.num_evictions == num_evictions


@pytest.mark.covers("kv-cache/eviction-order")
def test_the_least_recently_used_block_is_evicted_first() -> None:
    pool, (first, second, third) = pool_with_cached(b"uvw")
    for block_id in (second, first, third):
        pool.release([block_id])
    pool.add_reference([second])
    pool.release([second])
    pool.allocate(6)
    assert found(pool, b"uvw") == b"vw"
    pool.allocate(1)
    assert found(pool, b"uvw") == b"v"


def test_an_evicted_block_is_allocated_without_its_hash() -> None:
    pool, block_ids = pool_with_cached(b"x", num_blocks=1)
    pool.release(block_ids)
    assert pool.allocate(1) == block_ids
    assert pool.find(b"x") is None
    pool.release(block_ids)
    assert pool.num_idle == 0


@pytest.mark.covers("kv-cache/eviction-order")
def test_referenced_blocks_are_never_evicted_and_exhaustion_changes_nothing() -> None:
    pool, block_ids = pool_with_cached(b"uvw", num_blocks=4)
    pool.release(block_ids[1:])
    with pytest.raises(OutOfBlocksError, match="asked for 4 blocks but 3 of 4 are free"):
        pool.allocate(4)
    assert found(pool, b"uvw") == b"uvw"
    assert (pool.num_evictions, pool.num_free, pool.num_idle) == (0, 3, 2)


def test_an_uncached_block_keeps_its_references() -> None:
    pool, block_ids = pool_with_cached(b"x")
    pool.uncache_block(block_ids[0])
    assert pool.find(b"x") is None
    assert pool.is_referenced(block_ids[0])
    pool.release(block_ids)
    assert (pool.num_idle, pool.num_free) == (0, 8)


def test_an_idle_block_that_is_uncached_is_free() -> None:
    pool, block_ids = pool_with_cached(b"x")
    pool.release(block_ids)
    pool.uncache_block(block_ids[0])
    pool.uncache_block(block_ids[0] + 1)
    assert (pool.num_idle, pool.num_free) == (0, 8)
    assert sorted(pool.allocate(8)) == list(range(8))


def test_reference_counts_are_those_of_the_first_blocks_and_minus_one_for_an_idle_one() -> None:
    pool, block_ids = pool_with_cached(b"xy", num_blocks=4)
    pool.add_reference(block_ids[:1])
    pool.release(block_ids[1:])
    expected = {block_ids[0]: 2, block_ids[1]: -1}
    assert pool.ref_counts(100) == [expected.get(block_id, 0) for block_id in range(4)]
    assert pool.ref_counts(3) == pool.ref_counts(100)[:3]


def test_idle_blocks_are_no_leak() -> None:
    pool, block_ids = pool_with_cached(b"uv")
    pool.release(block_ids[:1])
    assert pool.audit(block_ids[1:]) == []
    assert pool.audit([]) == block_ids[1:]


@pytest.mark.covers("kv-cache/reclaim")
def test_reclaim_frees_leaked_blocks_with_their_hashes_and_references() -> None:
    pool, block_ids = pool_with_cached(b"uvw")
    pool.release(block_ids[:1])
    assert pool.reclaim(block_ids[1:2]) == 1
    assert found(pool, b"uvw") == b"uv"
    assert not pool.is_referenced(block_ids[2])
    assert (pool.num_free, pool.audit(block_ids[1:2])) == (7, [])


class CountedName(str):
    """A name that counts how often names are compared."""

    __slots__ = ()
    num_comparisons = 0

    def __eq__(self, other: object) -> bool:
        CountedName.num_comparisons += 1
        return str.__eq__(self, other)

    __hash__ = str.__hash__


def test_a_reference_is_given_back_without_a_look_at_all_who_share_the_block() -> None:
    pool = BlockPool(1, keeps_idle=True)
    names = [CountedName(f"request {number}") for number in range(1000)]
    block_ids = pool.allocate(1, holder=names[0])
    for name in names[1:]:
        pool.add_reference(block_ids, holder=name)
    CountedName.num_comparisons = 0
    for name in reversed(names):
        pool.release(block_ids, holder=CountedName(name))
    assert not pool.is_referenced(block_ids[0])
    assert CountedName.num_comparisons < 10 * len(names)
