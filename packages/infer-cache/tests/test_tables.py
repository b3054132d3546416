"""Block tables of sequences: growth at block boundaries, release, exhaustion, leaks."""

import pytest

from infer_cache import BlockTables, OutOfBlocksError, UnknownSequenceError


def test_a_prompt_is_reserved_whole() -> None:
    tables = BlockTables(10, 4)
    added = tables.reserve("a", 9)
    assert len(added) == 3
    assert tables.blocks("a") == tuple(added)
    assert tables.num_free_blocks == 7
    assert tables.num_free_tokens == 28
    assert tables.num_sequences == 1


@pytest.mark.parametrize("block_size", [1, 2, 5, 16])
def test_decode_grows_by_a_block_exactly_at_block_boundaries(block_size: int) -> None:
    tables = BlockTables(4, block_size)
    added = [num_tokens for num_tokens in range(1, 3 * block_size + 1) if tables.reserve("a", num_tokens)]
    assert added == [1, block_size + 1, 2 * block_size + 1]


@pytest.mark.parametrize(("num_tokens", "num_blocks"), [(0, 0), (1, 1), (15, 1), (16, 1), (17, 2), (32, 2), (33, 3)])
def test_a_sequence_takes_as_many_blocks_as_its_tokens_need(num_tokens: int, num_blocks: int) -> None:
    tables = BlockTables(8, 16)
    assert tables.blocks_for(num_tokens) == num_blocks
    assert len(tables.reserve("a", num_tokens)) == num_blocks


def test_block_size_1_gives_one_block_per_token() -> None:
    tables = BlockTables(3, 1)
    assert [len(tables.reserve("a", num_tokens)) for num_tokens in (1, 2, 3)] == [1, 1, 1]
    with pytest.raises(OutOfBlocksError):
        tables.reserve("a", 4)


def test_reserving_less_than_a_sequence_holds_changes_nothing() -> None:
    tables = BlockTables(8, 4)
    held = tables.reserve("a", 12)
    assert tables.reserve("a", 1) == []
    assert tables.blocks("a") == tuple(held)


def test_reserving_no_tokens_makes_the_sequence_known() -> None:
    tables = BlockTables(2, 4)
    assert tables.reserve("a", 0) == []
    assert tables.blocks("a") == ()
    assert len(tables.reserve("a", 5)) == 2
    tables.release("a")
    assert tables.num_free_blocks == 2


def test_what_reserve_returns_is_the_callers_to_keep() -> None:
    tables = BlockTables(4, 1)
    tables.reserve("a", 2).clear()
    assert len(tables.blocks("a")) == 2


def test_exhaustion_leaves_an_unknown_sequence_unknown() -> None:
    tables = BlockTables(2, 4)
    with pytest.raises(OutOfBlocksError, match="asked for 3 blocks but 2 of 2 are free"):
        tables.reserve("a", 9)
    assert tables.num_sequences == 0
    assert tables.num_free_blocks == 2
    assert tables.audit() == []


def test_exhaustion_leaves_a_growing_sequence_as_it_was() -> None:
    tables = BlockTables(2, 4)
    held = tables.reserve("a", 5)
    with pytest.raises(OutOfBlocksError):
        tables.reserve("a", 9)
    assert tables.blocks("a") == tuple(held)
    assert tables.reserve("a", 8) == []


@pytest.mark.parametrize(("num_tokens", "fits"), [(0, True), (8, True), (12, True), (13, False)])
def test_can_reserve_counts_what_the_sequence_holds(num_tokens: int, fits: bool) -> None:  # noqa: FBT001 - parameters
    tables = BlockTables(4, 4)
    tables.reserve("other", 4)
    tables.reserve("a", 5)
    assert tables.can_reserve("a", num_tokens) is fits
    assert tables.can_reserve("unknown", num_tokens) is (num_tokens <= 4)


def test_a_pool_of_no_blocks_holds_sequences_of_no_tokens() -> None:
    tables = BlockTables(0, 16)
    assert tables.reserve("a", 0) == []
    assert not tables.can_reserve("a", 1)
    with pytest.raises(OutOfBlocksError):
        tables.reserve("a", 1)


def test_an_unknown_sequence_is_an_error_that_names_it() -> None:
    tables = BlockTables(2, 4)
    with pytest.raises(UnknownSequenceError, match="`sequence_id` 'a' holds no blocks"):
        tables.release("a")
    with pytest.raises(KeyError):
        tables.blocks("a")


def test_a_sequence_is_released_once() -> None:
    tables = BlockTables(2, 4)
    tables.reserve("a", 8)
    tables.release("a")
    assert tables.num_free_blocks == 2
    with pytest.raises(UnknownSequenceError):
        tables.release("a")


def test_blocks_know_their_sequence() -> None:
    tables = BlockTables(4, 4)
    held = tables.reserve("a", 8)
    assert [tables.allocator.owner_of(block_id) for block_id in held] == ["a", "a"]


def test_a_leak_is_found_by_owner_and_by_reachability_and_reclaimed() -> None:
    tables = BlockTables(8, 4)
    held = tables.reserve("alive", 8)
    lost = tables.allocator.allocate(3, owner="gone")
    assert tables.allocator.blocks_of("gone") == sorted(lost)
    assert tables.audit() == sorted(lost)
    assert tables.reclaim() == 3
    assert tables.audit() == []
    assert tables.blocks("alive") == tuple(held)
    assert tables.num_free_blocks == 6


@pytest.mark.parametrize(("num_blocks", "block_size", "name"), [(-1, 4, "num_blocks"), (4, 0, "block_size")])
def test_impossible_sizes_are_refused(num_blocks: int, block_size: int, name: str) -> None:
    with pytest.raises(ValueError, match=f"`{name}` is"):
        BlockTables(num_blocks, block_size)
