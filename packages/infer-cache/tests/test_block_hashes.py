"""`BlockHashes`: equal where all tokens up to the block's end are equal, and nowhere else."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from infer_cache import BlockHashes

TOKENS = st.lists(st.integers(0, 3) | st.integers(0, 2**40), max_size=40)


def hashes_of(token_ids: list[int], block_size: int = 4, *, salt: str = "") -> list[bytes]:
    return BlockHashes(block_size, salt=salt).upto(token_ids, len(token_ids))


def test_only_full_blocks_have_hashes() -> None:
    assert [len(hashes_of(list(range(count)))) for count in (0, 3, 4, 7, 8, 9)] == [0, 0, 1, 1, 2, 2]


@pytest.mark.covers("kv-cache/shared-prefixes")
def test_equal_tokens_have_equal_hashes() -> None:
    assert hashes_of([5, 6, 7, 8] * 3) == hashes_of([5, 6, 7, 8] * 3)


def test_equal_blocks_after_different_prefixes_have_different_hashes() -> None:
    assert len(set(hashes_of([5, 6, 7, 8] * 3))) == 3


def test_one_different_token_changes_the_hash_of_its_block_and_of_all_after_it() -> None:
    hashes, others = hashes_of(list(range(16))), hashes_of([0, 1, 2, 3, 4, 5, 99, *range(7, 16)])
    assert hashes[0] == others[0]
    assert not set(hashes[1:]) & set(others[1:])


def test_the_order_of_tokens_counts() -> None:
    assert hashes_of([1, 2, 3, 4]) != hashes_of([2, 1, 3, 4])


@pytest.mark.covers("kv-cache/cache-salt")
def test_salts_have_no_hash_in_common() -> None:
    tokens = list(range(16))
    assert not set(hashes_of(tokens)) & set(hashes_of(tokens, salt="tenant"))
    assert hashes_of(tokens, salt="tenant") == hashes_of(tokens, salt="tenant")


def test_formats_of_the_cache_have_no_hash_in_common() -> None:
    tokens = list(range(16))
    formats = ["bfloat16", "int8", "float8_e4m3fn", "float8_e4m3fn [(0.5, 1.0)]", "float8_e4m3fn [(1.0, 0.5)]"]
    hashes = [BlockHashes(4, salt="tenant", kv_format=each).upto(tokens, 16) for each in formats]
    assert len({each for found in hashes for each in found}) == 4 * len(formats)
    assert hashes[0] == BlockHashes(4, salt="tenant", kv_format="bfloat16").upto(tokens, 16)


def test_a_salt_is_not_taken_for_a_part_of_the_format() -> None:
    one, other = BlockHashes(1, salt="b", kv_format="a"), BlockHashes(1, salt="", kv_format="ab")
    assert one.upto([1], 1) != other.upto([1], 1)


def test_block_sizes_have_no_hash_in_common() -> None:
    tokens = [7] * 24
    assert not set(hashes_of(tokens, 2)) & set(hashes_of(tokens, 4))


def test_asking_for_fewer_tokens_keeps_the_hashes_of_later_blocks() -> None:
    block_hashes = BlockHashes(4)
    hashes = block_hashes.upto(list(range(12)), 12).copy()
    assert block_hashes.upto(list(range(12)), 5)[:3] == hashes


def test_tokens_beyond_those_asked_for_have_no_hash() -> None:
    assert len(BlockHashes(4).upto(list(range(12)), 7)) == 1


@given(tokens=TOKENS, steps=st.lists(st.integers(0, 9), max_size=8), block_size=st.integers(1, 6))
def test_hashes_computed_in_steps_are_those_computed_at_once(
    tokens: list[int], steps: list[int], block_size: int
) -> None:
    block_hashes, known = BlockHashes(block_size), 0
    for step in steps:
        known = min(known + step, len(tokens))
        block_hashes.upto(tokens[:known], known)
    assert block_hashes.upto(tokens, len(tokens)) == hashes_of(tokens, block_size)


@given(one=TOKENS, other=TOKENS, shared=TOKENS, block_size=st.integers(1, 6))
def test_two_blocks_have_the_same_hash_exactly_where_all_tokens_up_to_their_ends_are_equal(
    one: list[int], other: list[int], shared: list[int], block_size: int
) -> None:
    one, other = shared + one, shared + other
    pairs = zip(hashes_of(one, block_size), hashes_of(other, block_size), strict=False)
    for end, (left, right) in enumerate(pairs, start=1):
        assert (left == right) is (one[: end * block_size] == other[: end * block_size])
