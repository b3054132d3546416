"""The names of blocks: equal where all tokens up to the block's end are equal, and nowhere else."""

from hypothesis import given
from hypothesis import strategies as st

from infer_cache import BlockHashes

TOKENS = st.lists(st.integers(0, 3) | st.integers(0, 2**40), max_size=40)


def names_of(token_ids: list[int], block_size: int = 4, *, salt: str = "") -> list[bytes]:
    return BlockHashes(block_size, salt=salt).upto(token_ids, len(token_ids))


def test_only_full_blocks_have_names() -> None:
    assert [len(names_of(list(range(count)))) for count in (0, 3, 4, 7, 8, 9)] == [0, 0, 1, 1, 2, 2]


def test_equal_tokens_have_equal_names() -> None:
    assert names_of([5, 6, 7, 8] * 3) == names_of([5, 6, 7, 8] * 3)


def test_equal_blocks_after_different_beginnings_have_different_names() -> None:
    assert len(set(names_of([5, 6, 7, 8] * 3))) == 3


def test_one_different_token_changes_the_name_of_its_block_and_of_all_after_it() -> None:
    block_hashes, others = names_of(list(range(16))), names_of([0, 1, 2, 3, 4, 5, 99, *range(7, 16)])
    assert block_hashes[0] == others[0]
    assert not set(block_hashes[1:]) & set(others[1:])


def test_the_order_of_tokens_counts() -> None:
    assert names_of([1, 2, 3, 4]) != names_of([2, 1, 3, 4])


def test_salts_have_no_name_in_common() -> None:
    tokens = list(range(16))
    assert not set(names_of(tokens)) & set(names_of(tokens, salt="tenant"))
    assert names_of(tokens, salt="tenant") == names_of(tokens, salt="tenant")


def test_block_sizes_have_no_name_in_common() -> None:
    tokens = [7] * 24
    assert not set(names_of(tokens, 2)) & set(names_of(tokens, 4))


def test_asking_for_fewer_tokens_keeps_what_is_known() -> None:
    digests = BlockHashes(4)
    block_hashes = digests.upto(list(range(12)), 12).copy()
    assert digests.upto(list(range(12)), 5)[:3] == block_hashes


def test_tokens_beyond_those_asked_for_have_no_name() -> None:
    assert len(BlockHashes(4).upto(list(range(12)), 7)) == 1


@given(tokens=TOKENS, steps=st.lists(st.integers(0, 9), max_size=8), block_size=st.integers(1, 6))
def test_names_that_come_token_by_token_are_those_computed_at_once(
    tokens: list[int], steps: list[int], block_size: int
) -> None:
    digests, known = BlockHashes(block_size), 0
    for step in steps:
        known = min(known + step, len(tokens))
        digests.upto(tokens[:known], known)
    assert digests.upto(tokens, len(tokens)) == names_of(tokens, block_size)


@given(one=TOKENS, other=TOKENS, shared=TOKENS, block_size=st.integers(1, 6))
def test_two_blocks_have_one_name_exactly_where_everything_up_to_them_is_equal(
    one: list[int], other: list[int], shared: list[int], block_size: int
) -> None:
    one, other = shared + one, shared + other
    block_hashes = zip(names_of(one, block_size), names_of(other, block_size), strict=False)
    for end, (mine, theirs) in enumerate(block_hashes, start=1):
        assert (mine == theirs) is (one[: end * block_size] == other[: end * block_size])
