"""Prefixes that are found again: what a hit needs and costs, what is kept, published, taken back and adopted."""

from collections.abc import Iterable, Sequence

import pytest

from infer_cache import GroupSpec, PagedTables, PrefixDigests, TableEdit

TOKENS = list(range(100, 140))
SIZE = 4
NAMES = PrefixDigests(SIZE).upto(TOKENS, len(TOKENS))


def tables_of(
    *windows: int | None, num_blocks: int = 16, keeps_prefixes: bool = True, max_chunk: int | None = None
) -> PagedTables:
    groups = [GroupSpec(num_blocks=num_blocks, window=window) for window in windows]
    return PagedTables(groups, SIZE, max_chunk=max_chunk, keeps_prefixes=keeps_prefixes)


def admit(tables: PagedTables, sequence_id: str, num_tokens: int, *, names: Sequence[bytes] = NAMES) -> list[TableEdit]:
    """Admit a sequence of the first tokens of `TOKENS`, with what is there of it."""
    return tables.admit(sequence_id, num_tokens, tables.find(names[: num_tokens // SIZE], num_tokens))


def compute(tables: PagedTables, sequence_id: str, num_tokens: int) -> None:
    admit(tables, sequence_id, num_tokens)
    tables.publish(sequence_id, NAMES, num_tokens)


def forget(tables: PagedTables, group: int, columns: Iterable[int]) -> None:
    """Take away names in one group, as an eviction there would."""
    for column in columns:
        block_id = tables.groups[group].blocks.find(NAMES[column])
        assert block_id is not None
        tables.groups[group].blocks.forget(block_id)


def test_the_longest_beginning_that_is_there_is_found() -> None:
    tables = tables_of(None)
    compute(tables, "a", 3 * SIZE)
    hit = tables.find(NAMES, len(TOKENS))
    assert (hit.num_tokens, hit.firsts, hit.blocks) == (12, (0,), (tables.blocks("a"),))
    assert tables.find(NAMES[:2], 11).blocks == (tables.blocks("a")[:2],)


def test_nothing_is_found_of_other_tokens_or_before_publishing() -> None:
    tables = tables_of(None, 4)
    admit(tables, "a", 12)
    assert tables.find(NAMES, 12).num_tokens == 0
    tables.publish("a", NAMES, 12)
    others = PrefixDigests(SIZE, salt="tenant").upto(TOKENS, 12)
    hit = tables.find(others, 12)
    assert (hit.num_tokens, hit.firsts, hit.blocks, hit.num_held_tokens) == (0, (0, 0), ((), ()), (0, 0))


def test_a_hole_ends_a_hit_in_a_group_that_keeps_everything() -> None:
    tables = tables_of(None)
    compute(tables, "a", 20)
    forget(tables, 0, [2])
    assert tables.find(NAMES, 20).num_tokens == 8


def test_a_partly_computed_block_is_not_published() -> None:
    tables = tables_of(None)
    admit(tables, "a", 12)
    tables.publish("a", NAMES, 11)
    assert tables.find(NAMES, 12).num_tokens == 8


def test_a_group_with_a_window_needs_only_the_blocks_in_reach() -> None:
    tables = tables_of(None, 5)
    compute(tables, "a", 20)
    forget(tables, 1, range(4))
    hit = tables.find(NAMES, 40)
    assert (hit.num_tokens, hit.firsts) == (20, (0, 4))
    assert [len(blocks) for blocks in hit.blocks] == [5, 1]


@pytest.mark.parametrize(("forgotten", "num_tokens"), [(4, 16), (3, 12), (2, 20)])
def test_a_hit_gets_shorter_until_its_window_is_there(forgotten: int, num_tokens: int) -> None:
    tables = tables_of(None, 6)
    compute(tables, "a", 20)
    forget(tables, 1, [forgotten])
    assert tables.find(NAMES, 40).num_tokens == num_tokens


def test_a_hit_needs_the_windows_of_all_groups() -> None:
    tables = tables_of(4, 12)
    compute(tables, "a", 20)
    forget(tables, 0, [4])
    forget(tables, 1, [1])
    hit = tables.find(NAMES, 40)
    assert (hit.num_tokens, hit.firsts) == (4, (0, 0))


def test_a_fully_cached_prompt_has_its_last_token_and_that_ones_window_in_reach() -> None:
    tables = tables_of(None, 2)
    compute(tables, "a", 20)
    hit = tables.find(NAMES, 20)
    assert (hit.num_tokens, hit.firsts) == (20, (0, 4))
    assert [len(blocks) for blocks in hit.blocks] == [5, 1]
    assert tables.find(NAMES[:5], 21).firsts == (0, 4)


def test_a_fully_cached_prompt_of_one_token_blocks_keeps_what_its_last_token_reads() -> None:
    tables = PagedTables([GroupSpec(num_blocks=8, window=2)], 1, keeps_prefixes=True)
    names = PrefixDigests(1).upto(TOKENS, 4)
    tables.admit("a", 4, tables.find(names, 4))
    tables.publish("a", names, 4)
    assert tables.find(names, 4).firsts == (2,)
    assert tables.find(names, 5).firsts == (3,)


def test_an_admitted_hit_is_written_into_the_table_from_the_first_block_in_reach() -> None:
    tables = tables_of(None, 4)
    compute(tables, "a", 20)
    full, windowed = admit(tables, "b", 24)
    assert (full.column, full.block_ids[:5]) == (0, list(tables.blocks("a", 0)))
    assert (windowed.column, windowed.block_ids[0]) == (4, tables.blocks("a", 1)[4])
    assert tables.blocks("b", 1) == tuple(windowed.block_ids)


def test_blocks_that_others_hold_cost_no_free_tokens() -> None:
    tables = tables_of(None)
    compute(tables, "a", 20)
    free = tables.num_free_tokens
    hit = tables.find(NAMES, 27)
    assert (hit.num_held_tokens, tables.costs(27, hit)) == ((20,), [7])
    tables.admit("b", 27, hit)
    assert free - tables.num_free_tokens == 8


def test_idle_blocks_count_as_free_and_cost_what_others_would() -> None:
    tables = tables_of(None)
    compute(tables, "a", 20)
    tables.release("a")
    assert (tables.num_free_blocks, tables.num_free_tokens, tables.num_idle_blocks) == (16, 64, 5)
    hit = tables.find(NAMES, 27)
    assert (hit.num_held_tokens, tables.costs(27, hit)) == ((0,), [27])
    tables.admit("b", 27, hit)
    assert (tables.num_free_blocks, tables.num_idle_blocks) == (9, 0)


def test_a_hit_fits_where_only_its_held_blocks_make_it_fit() -> None:
    tables = tables_of(None, num_blocks=6)
    compute(tables, "a", 20)
    assert tables.fits(24, tables.find(NAMES, 24))
    assert not tables.fits(24, tables.find([], 24))
    assert not tables.fits(25, tables.find(NAMES, 25))
    admit(tables, "b", 24)
    assert tables.num_free_blocks == 0


def test_idle_blocks_of_a_hit_are_not_evicted_for_its_own_rest() -> None:
    tables = tables_of(None, num_blocks=6)
    compute(tables, "a", 20)
    tables.release("a")
    hit = tables.find(NAMES, 24)
    (edit,) = tables.admit("b", 24, hit)
    assert tuple(edit.block_ids[:5]) == hit.blocks[0]
    assert (len(set(edit.block_ids)), tables.num_evictions) == (6, 0)


def test_pressure_evicts_idle_blocks_from_the_end_of_the_prefix() -> None:
    tables = tables_of(None, num_blocks=6)
    compute(tables, "a", 20)
    tables.release("a")
    admit(tables, "b", 12, names=[])
    assert (tables.num_evictions, tables.num_idle_blocks) == (2, 3)
    assert tables.find(NAMES, 20).num_tokens == 12


def test_without_keeping_prefixes_are_found_only_while_somebody_holds_them() -> None:
    tables = tables_of(None, 5, keeps_prefixes=False)
    compute(tables, "a", 20)
    admit(tables, "b", 20)
    tables.release("a")
    assert tables.find(NAMES, 20).num_tokens == 20
    tables.release("b")
    assert (tables.find(NAMES, 20).num_tokens, tables.num_idle_blocks, tables.num_free_blocks) == (0, 0, 32)


def test_publishing_goes_on_where_it_ended() -> None:
    tables = tables_of(None)
    admit(tables, "a", 20)
    found = []
    for num_tokens in (3, 8, 8, 19, 20):
        tables.publish("a", NAMES, num_tokens)
        found.append(tables.find(NAMES, 40).num_tokens)
    assert found == [0, 8, 8, 16, 20]


def test_blocks_computed_twice_are_found_once() -> None:
    tables = tables_of(None)
    admit(tables, "a", 8)
    admit(tables, "b", 8)
    tables.publish("b", NAMES, 8)
    tables.publish("a", NAMES, 8)
    assert tables.find(NAMES, 8).blocks == (tables.blocks("b"),)
    tables.release("a")
    assert tables.num_idle_blocks == 0


def test_unpublished_blocks_are_found_by_nobody_and_can_be_published_again() -> None:
    tables = tables_of(None, 40)
    compute(tables, "a", 20)
    tables.unpublish("a", 11)
    assert tables.find(NAMES, 20).num_tokens == 8
    tables.publish("a", NAMES, 20)
    assert tables.find(NAMES, 20).num_tokens == 20


def test_unpublished_blocks_are_free_once_released() -> None:
    tables = tables_of(None, 4)
    compute(tables, "a", 20)
    tables.unpublish("a", 0)
    tables.release("a")
    assert (tables.num_idle_blocks, tables.num_free_blocks) == (0, 32)


def test_a_sequence_adopts_what_another_has_computed_in_the_meantime() -> None:
    tables = tables_of(None, 40)
    admit(tables, "b", 20)
    compute(tables, "a", 12)
    edits = tables.adopt("b", NAMES[:5], 0)
    assert [(edit.group, edit.column) for edit in edits] == [(0, 0), (1, 0), (0, 1), (1, 1), (0, 2), (1, 2)]
    for group in (0, 1):
        assert tables.blocks("b", group)[:3] == tables.blocks("a", group)
        assert len(set(tables.blocks("b", group))) == 5


def test_adopting_gives_back_the_sequences_own_blocks() -> None:
    tables = tables_of(None)
    admit(tables, "b", 20)
    compute(tables, "a", 12)
    tables.adopt("b", NAMES[:5], 0)
    assert (tables.num_free_blocks, tables.audit()) == (16 - 5, [])
    tables.release("a")
    assert (tables.num_free_blocks, tables.num_idle_blocks) == (16 - 5, 0)
    tables.release("b")
    assert (tables.num_free_blocks, tables.num_idle_blocks) == (16, 3)


def test_adoption_goes_on_from_what_is_computed_but_not_within_a_block() -> None:
    tables = tables_of(None)
    admit(tables, "b", 20)
    compute(tables, "a", 12)
    assert tables.adopt("b", NAMES, 5) == []
    assert [edit.column for edit in tables.adopt("b", NAMES, 8)] == [2]


def test_a_sequence_never_adopts_its_own_blocks() -> None:
    tables = tables_of(None)
    compute(tables, "a", 12)
    assert tables.adopt("a", NAMES, 0) == []


def test_adoption_ends_where_one_group_has_nothing_and_where_the_table_ends() -> None:
    tables = tables_of(None, 40)
    admit(tables, "b", 16)
    compute(tables, "a", 24)
    forget(tables, 1, [1])
    assert [edit.column for edit in tables.adopt("b", NAMES, 0)] == [0, 0]
    assert [edit.column for edit in tables.adopt("b", NAMES, 8)] == [2, 2, 3, 3]


def test_an_adopted_block_is_named_by_who_computed_it() -> None:
    tables = tables_of(None)
    admit(tables, "b", 12)
    compute(tables, "a", 8)
    tables.adopt("b", NAMES, 0)
    tables.publish("b", NAMES, 12)
    assert tables.find(NAMES, 12).blocks == (tables.blocks("b"),)
