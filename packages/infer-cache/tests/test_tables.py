"""Block tables of sequences: growth at block boundaries, admission to all groups or none, exhaustion, leaks."""

import pytest

from infer_cache import GroupSpec, OutOfBlocksError, PagedTables, PrefixDigests, TableEdit, UnknownSequenceError


def tables_of(*num_blocks: int, block_size: int = 4, keeps_prefixes: bool = False) -> PagedTables:
    """Tables of groups that keep every block."""
    groups = [GroupSpec(num_blocks=count) for count in num_blocks]
    return PagedTables(groups, block_size, keeps_prefixes=keeps_prefixes)


def admit(tables: PagedTables, sequence_id: str, num_tokens: int) -> list[TableEdit]:
    return tables.admit(sequence_id, num_tokens, tables.find([], num_tokens))


def test_a_prompt_is_reserved_whole() -> None:
    tables = tables_of(10)
    (edit,) = admit(tables, "a", 9)
    assert (edit.group, edit.column, len(edit.block_ids)) == (0, 0, 3)
    assert tables.blocks("a") == tuple(edit.block_ids)
    assert (tables.num_free_blocks, tables.num_free_tokens, tables.capacity("a")) == (7, 28, 12)
    assert tables.holds("a")


@pytest.mark.parametrize("block_size", [1, 2, 5, 16])
def test_decode_grows_by_a_block_exactly_at_block_boundaries(block_size: int) -> None:
    tables = tables_of(4, block_size=block_size)
    admit(tables, "a", 1)
    grown = [n for n in range(2, 3 * block_size + 1) if tables.try_extend("a", n, first_position=n - 1)]
    assert grown == [block_size + 1, 2 * block_size + 1]


def test_an_edit_says_where_in_the_row_the_added_blocks_belong() -> None:
    tables = tables_of(8, 8)
    admit(tables, "a", 5)
    edits = tables.try_extend("a", 14, first_position=5)
    assert edits is not None
    assert [(edit.group, edit.column) for edit in edits] == [(0, 2), (1, 2)]
    assert [edit.block_ids for edit in edits] == [list(tables.blocks("a", group)[2:]) for group in (0, 1)]


@pytest.mark.parametrize(("num_tokens", "num_blocks"), [(0, 0), (1, 1), (15, 1), (16, 1), (17, 2), (32, 2), (33, 3)])
def test_a_sequence_takes_as_many_blocks_as_its_tokens_need(num_tokens: int, num_blocks: int) -> None:
    tables = tables_of(8, block_size=16)
    (edit,) = admit(tables, "a", num_tokens)
    assert len(edit.block_ids) == num_blocks


def test_extending_to_less_than_a_sequence_holds_changes_nothing() -> None:
    tables = tables_of(8)
    (edit,) = admit(tables, "a", 12)
    assert tables.try_extend("a", 1, first_position=0) == []
    assert tables.blocks("a") == tuple(edit.block_ids)


def test_what_an_edit_lists_is_the_callers_to_keep() -> None:
    tables = tables_of(4, block_size=1)
    admit(tables, "a", 2)[0].block_ids.clear()
    edits = tables.try_extend("a", 3, first_position=2)
    assert edits is not None
    edits[0].block_ids.clear()
    assert len(tables.blocks("a")) == 3


def test_admission_that_does_not_fit_leaves_the_sequence_unknown() -> None:
    tables = tables_of(2)
    assert not tables.fits(9, tables.find([], 9))
    with pytest.raises(OutOfBlocksError, match="asked for 3 blocks but 2 of 2 are free"):
        admit(tables, "a", 9)
    assert not tables.holds("a")
    assert (tables.num_free_blocks, tables.audit()) == (2, [])


@pytest.mark.parametrize("num_blocks", [(2, 9, 9), (9, 2, 9), (9, 9, 2)])
def test_admission_takes_blocks_in_all_groups_or_in_none(num_blocks: tuple[int, ...]) -> None:
    tables = tables_of(*num_blocks)
    assert not tables.fits(9, tables.find([], 9))
    with pytest.raises(OutOfBlocksError):
        admit(tables, "a", 9)
    assert not tables.holds("a")
    assert (tables.num_free_blocks, tables.audit()) == (20, [])
    assert len(admit(tables, "a", 8)) == 3


def test_refused_admission_evicts_nothing() -> None:
    tables, names = tables_of(4, 2, keeps_prefixes=True), PrefixDigests(4).upto(list(range(16)), 16)
    admit(tables, "a", 8)
    tables.publish("a", names, 8)
    tables.release("a")
    for hit in (tables.find(names, 16), tables.find([], 16)):
        with pytest.raises(OutOfBlocksError):
            tables.admit("b", 16, hit)
        assert tables.find(names, 16).num_tokens == 8
        assert (tables.num_evictions, tables.num_idle_blocks, tables.audit()) == (0, 4, [])


def test_a_sequence_is_admitted_once() -> None:
    tables = tables_of(8, 8)
    admit(tables, "a", 4)
    with pytest.raises(ValueError, match="`sequence_id` 'a' has blocks already"):
        admit(tables, "a", 4)
    assert tables.num_free_blocks == 14


def test_exhaustion_leaves_a_growing_sequence_as_it_was() -> None:
    tables = tables_of(2)
    (edit,) = admit(tables, "a", 5)
    assert tables.try_extend("a", 9, first_position=8) is None
    assert tables.blocks("a") == tuple(edit.block_ids)
    assert tables.try_extend("a", 8, first_position=5) == []


def test_growth_that_one_group_cannot_give_is_given_in_none() -> None:
    tables = tables_of(8, 2)
    admit(tables, "a", 8)
    assert tables.try_extend("a", 9, first_position=8) is None
    assert [len(tables.blocks("a", group)) for group in (0, 1)] == [2, 2]
    assert tables.num_free_blocks == 6


def miscounting_tables(names: list[bytes]) -> PagedTables:
    """Tables that hold the sequence `a`, and whose second group counts one free block as two: it was freed twice."""
    tables = tables_of(5, 3, keeps_prefixes=True)
    for sequence_id, name in zip("ab", names, strict=True):
        admit(tables, sequence_id, 4)
        tables.publish(sequence_id, [name], 4)
    idle = tables.blocks("b", 1)
    tables.release("b")
    tables.groups[1].blocks.allocator.free(idle)
    return tables


def test_growth_that_fails_in_the_second_group_is_undone_in_the_first() -> None:
    tables = miscounting_tables([b"x", b"y"])
    before, num_free = tables.blocks("a", 0), tables.groups[0].blocks.num_free
    with pytest.raises(ValueError, match="not allocated"):
        tables.try_extend("a", 16, first_position=4)
    assert (tables.blocks("a", 0), len(tables.blocks("a", 1))) == (before, 1)
    assert tables.groups[0].blocks.num_free == num_free


def test_admission_that_fails_in_the_second_group_is_undone_in_both() -> None:
    tables = miscounting_tables([b"x", b"y"])
    num_free = tables.groups[0].blocks.num_free
    with pytest.raises(ValueError, match="not allocated"):
        tables.admit("c", 16, tables.find([b"x"], 16))
    assert not tables.holds("c")
    assert tables.groups[0].blocks.num_free == num_free
    (found,) = tables.blocks("a", 1)
    tables.release("a")
    assert not tables.groups[1].blocks.is_held(found)


def test_capacity_is_the_tokens_that_every_group_has_room_for() -> None:
    tables = tables_of(8, 8, block_size=5)
    admit(tables, "a", 6)
    assert tables.capacity("a") == 10
    tables.try_extend("a", 11, first_position=6)
    assert tables.capacity("a") == 15


def test_free_tokens_are_the_smallest_groups() -> None:
    tables = tables_of(8, 3)
    assert (tables.num_free_tokens, tables.num_blocks, tables.num_free_blocks) == (12, 11, 11)
    admit(tables, "a", 1)
    assert tables.num_free_tokens == 8


def test_usage_is_the_fullest_groups() -> None:
    tables = tables_of(8, 4)
    assert tables.usage == 0
    admit(tables, "a", 4)
    assert tables.usage == pytest.approx(1 / 4)


def test_a_budget_leaves_the_reserved_share_of_every_groups_tokens() -> None:
    tables = tables_of(100, 50, block_size=1)
    budget = tables.budget(0.2)
    costs = tables.costs(20, tables.find([], 20))
    assert costs == [20, 20]
    assert [budget.take(costs) for _ in range(3)] == [True, True, False]


def test_prompts_of_100_200_and_300_tokens_are_admitted_as_free_tokens_allow() -> None:
    for num_tokens, admitted in ((250, [True, False, False]), (625, [True, True, False]), (750, [True, True, True])):
        tables = tables_of(num_tokens, block_size=1)
        budget = tables.budget(0.2)
        assert [budget.take(tables.costs(n, tables.find([], n))) for n in (100, 200, 300)] == admitted


def test_a_pool_of_no_blocks_admits_sequences_of_no_tokens() -> None:
    tables = tables_of(0)
    assert [edit.block_ids for edit in admit(tables, "a", 0)] == [[]]
    assert not tables.fits(1, tables.find([], 1))
    assert tables.try_extend("a", 1, first_position=0) is None


def test_an_unknown_sequence_is_an_error_that_names_it() -> None:
    tables = tables_of(2, 2)
    for use in (tables.release, tables.blocks, tables.capacity):
        with pytest.raises(UnknownSequenceError, match="`sequence_id` 'a' holds no blocks"):
            use("a")
    with pytest.raises(KeyError):
        tables.try_extend("a", 1, first_position=0)
    with pytest.raises(KeyError):
        tables.adopt("a", [], 0)
    with pytest.raises(KeyError):
        tables.publish("a", [], 0)
    with pytest.raises(KeyError):
        tables.unpublish("a", 0)


def test_a_sequence_is_released_once() -> None:
    tables = tables_of(2, 3)
    admit(tables, "a", 8)
    tables.release("a")
    assert (tables.num_free_blocks, tables.holds("a")) == (5, False)
    with pytest.raises(UnknownSequenceError):
        tables.release("a")


def test_blocks_know_their_sequence() -> None:
    tables = tables_of(4, 4)
    admit(tables, "a", 8)
    for index, group in enumerate(tables.groups):
        assert [group.blocks.allocator.owner_of(block_id) for block_id in tables.blocks("a", index)] == ["a", "a"]


def test_a_leak_is_found_with_its_group_and_reclaimed() -> None:
    tables = tables_of(8, 8)
    admit(tables, "alive", 8)
    lost = tables.groups[1].blocks.allocator.allocate(3, owner="gone")
    assert tables.audit() == [(1, block_id) for block_id in sorted(lost)]
    assert tables.reclaim() == 3
    assert (tables.audit(), tables.num_free_blocks, len(tables.blocks("alive", 1))) == ([], 12, 2)


@pytest.mark.parametrize(("num_blocks", "block_size", "name"), [(-1, 4, "num_blocks"), (4, 0, "block_size")])
def test_impossible_sizes_are_refused(num_blocks: int, block_size: int, name: str) -> None:
    with pytest.raises(ValueError, match=f"`{name}` is"):
        tables_of(num_blocks, block_size=block_size)


def test_no_groups_are_refused() -> None:
    with pytest.raises(ValueError, match="`groups` is empty"):
        PagedTables([], 4)
