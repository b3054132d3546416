"""What a sliding window leaves behind: which blocks it reaches, how many a sequence holds, what that saves."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from infer_cache import GroupSpec, LayerGroups, PagedTables, PrefixDigests, blocks_in_reach
from infer_cache.reach import first_block_in_reach


def attended_blocks(first_position: int, num_tokens: int, *, window: int, block_size: int) -> set[int]:
    """The definition, token by token: which blocks the tokens from `first_position` up to `num_tokens` attend to."""
    return {
        key // block_size
        for query in range(first_position, num_tokens)
        for key in range(query + 1)
        if query - key < window
    }


def admitted(num_tokens: int, *, window: int, max_chunk: int | None, block_size: int) -> PagedTables:
    """Tables of one group with a window, and in it the sequence `a`."""
    tables = PagedTables([GroupSpec(num_blocks=num_tokens, window=window)], block_size, max_chunk=max_chunk)
    tables.admit("a", num_tokens, tables.find([], num_tokens))
    return tables


@given(first_position=st.integers(0, 40), window=st.integers(1, 30), block_size=st.integers(1, 7))
def test_the_first_block_in_reach_is_the_lowest_that_is_attended_to(
    first_position: int, window: int, block_size: int
) -> None:
    blocks = attended_blocks(first_position, first_position + 3, window=window, block_size=block_size)
    assert first_block_in_reach(first_position, window=window, block_size=block_size) == min(blocks)


@given(
    num_tokens=st.integers(1, 40), window=st.integers(1, 20), max_chunk=st.integers(1, 12), block_size=st.integers(1, 7)
)
def test_blocks_in_reach_bound_what_any_chunk_attends_to_and_by_at_most_one(
    num_tokens: int, window: int, max_chunk: int, block_size: int
) -> None:
    most = max(
        len(attended_blocks(first, min(first + max_chunk, num_tokens), window=window, block_size=block_size))
        for first in range(num_tokens)
    )
    bound = blocks_in_reach(num_tokens, window=window, max_chunk=max_chunk, block_size=block_size)
    assert most <= bound <= min(most + 1, -(-num_tokens // block_size))


@pytest.mark.parametrize(("window", "max_chunk"), [(None, 4), (5, None), (None, None)])
def test_without_a_window_or_a_chunk_every_block_is_in_reach(window: int | None, max_chunk: int | None) -> None:
    assert blocks_in_reach(33, window=window, max_chunk=max_chunk, block_size=4) == 9
    assert first_block_in_reach(33, window=None, block_size=4) == 0


@given(
    num_prompt=st.integers(1, 40),
    num_generated=st.integers(0, 12),
    window=st.integers(1, 20),
    max_chunk=st.integers(1, 9),
    block_size=st.integers(1, 7),
)
def test_a_sequence_holds_what_it_attends_to_and_never_more_than_its_reach(
    num_prompt: int, num_generated: int, window: int, max_chunk: int, block_size: int
) -> None:
    num_tokens = num_prompt + num_generated
    most = blocks_in_reach(num_tokens, window=window, max_chunk=max_chunk, block_size=block_size)
    tables = PagedTables([GroupSpec(num_blocks=most, window=window)], block_size, max_chunk=max_chunk)
    (edit,) = tables.admit("a", num_prompt, tables.find([], num_prompt))
    row = dict(enumerate(edit.block_ids))
    ends = [*range(max_chunk, num_prompt, max_chunk), num_prompt, *range(num_prompt + 1, num_tokens + 1)]
    for first, end in zip([0, *ends], ends, strict=False):
        edits = tables.try_extend("a", end, first_position=first)
        assert edits is not None
        row |= {edit.column + i: block_id for edit in edits for i, block_id in enumerate(edit.block_ids)}
        held = {row[column] for column in attended_blocks(first, end, window=window, block_size=block_size)}
        assert held <= set(tables.blocks("a"))
        assert len(tables.blocks("a")) <= most


def test_a_prompt_longer_than_the_window_reserves_what_one_chunk_reaches() -> None:
    tables = admitted(40, window=5, max_chunk=8, block_size=4)
    assert len(tables.blocks("a")) == 4
    assert tables.capacity("a") == 16
    assert tables.costs(40, tables.find([], 40)) == [16]
    assert not PagedTables([GroupSpec(num_blocks=3, window=5)], 4, max_chunk=8).fits(40, tables.find([], 40))


def test_a_prompt_after_a_hit_reserves_what_one_chunk_reaches_from_there() -> None:
    tables = PagedTables([GroupSpec(num_blocks=30, window=5)], 4, max_chunk=8, keeps_prefixes=True)
    names = PrefixDigests(4).upto(list(range(80)), 80)
    for sequence_id in "ab":
        (edit,) = tables.admit(sequence_id, 80, hit := tables.find(names, 80))
        assert (edit.column, len(edit.block_ids)) == (max(0, hit.num_tokens // 4 - 1), 4)
        tables.try_extend(sequence_id, 16, first_position=8)
        tables.publish(sequence_id, names, 16)
    assert tables.capacity("b") == 28


def test_capacity_is_what_the_group_of_the_shortest_reach_has_room_for() -> None:
    tables = PagedTables([GroupSpec(num_blocks=10), GroupSpec(num_blocks=10, window=5)], 4, max_chunk=8)
    full, windowed = tables.admit("a", 40, tables.find([], 40))
    assert (len(full.block_ids), len(windowed.block_ids), tables.capacity("a")) == (10, 4, 16)


def test_blocks_behind_the_window_are_free_at_once() -> None:
    tables = admitted(40, window=5, max_chunk=None, block_size=4)
    assert tables.num_free_blocks == 40 - 10
    behind = tables.blocks("a")[:3]
    assert tables.try_extend("a", 40, first_position=16) == []
    assert tables.num_free_blocks == 40 - 7
    assert not set(behind) & set(tables.blocks("a"))
    assert tables.audit() == []


def test_a_block_is_left_when_its_last_token_leaves_the_window() -> None:
    tables = admitted(20, window=5, max_chunk=None, block_size=4)
    held = []
    for first_position in range(6, 14):
        tables.try_extend("a", 20, first_position=first_position)
        held.append(len(tables.blocks("a")))
    assert held == [5, 5, 4, 4, 4, 4, 3, 3]


def test_published_blocks_behind_the_window_are_idle_at_once() -> None:
    tables = PagedTables([GroupSpec(num_blocks=10, window=5)], 4, keeps_prefixes=True)
    names = PrefixDigests(4).upto(list(range(40)), 40)
    tables.admit("a", 40, tables.find([], 40))
    tables.publish("a", names, 16)
    tables.try_extend("a", 40, first_position=16)
    assert (tables.num_free_blocks, tables.num_idle_blocks) == (3, 3)
    assert tables.find(names, 13).num_tokens == 16


def test_growth_that_fails_has_given_back_what_the_window_left_and_nothing_else() -> None:
    groups = [GroupSpec(num_blocks=5), GroupSpec(num_blocks=5, window=5)]
    tables = PagedTables(groups, 4)
    tables.admit("a", 20, tables.find([], 20))
    full, windowed = tables.blocks("a", 0), tables.blocks("a", 1)
    assert tables.try_extend("a", 21, first_position=20) is None
    assert tables.blocks("a", 0) == full
    assert tables.blocks("a", 1) == windowed[4:]


def test_layers_of_equal_window_share_a_group_and_the_longest_reach_is_the_first() -> None:
    groups = LayerGroups.by_window([4, 4, None, 8, 4, None])
    assert groups.windows == (None, 8, 4)
    assert groups.group_of_layer == (2, 2, 0, 1, 2, 0)
    assert groups.num_layers == (2, 1, 3)


def test_layers_without_windows_are_one_group() -> None:
    assert LayerGroups.by_window([None, None]) == LayerGroups.all_in_one(2)
    assert LayerGroups.all_in_one(2).num_layers == (2,)


@pytest.mark.parametrize("window", [512, 1024])
def test_gemmas_layers_hold_a_quarter_of_the_memory_at_32k_tokens(window: int) -> None:
    layers = LayerGroups.by_window(([window] * 5 + [None]) * 4)
    grouped = peak_layer_blocks(layers, num_prompt=32_000, num_tokens=32_768)
    whole = peak_layer_blocks(LayerGroups.all_in_one(24), num_prompt=32_000, num_tokens=32_768)
    assert whole == 24 * 32_768 // 64
    assert grouped * 4 <= whole


def peak_layer_blocks(layers: LayerGroups, *, num_prompt: int, num_tokens: int) -> int:
    """Compute a prompt in chunks of 512, then token by token; return the most blocks of all layers that were held."""
    tables = PagedTables([GroupSpec(num_blocks=512, window=window) for window in layers.windows], 64, max_chunk=512)
    tables.admit("a", num_prompt, tables.find([], num_prompt))
    peak = 0
    ends = [*range(512, num_prompt, 512), num_prompt, *range(num_prompt + 1, num_tokens + 1)]
    for first, end in zip([0, *ends], ends, strict=False):
        assert tables.try_extend("a", end, first_position=first) is not None
        held = [len(tables.blocks("a", group)) for group in range(len(layers.windows))]
        peak = max(peak, sum(count * blocks for count, blocks in zip(layers.num_layers, held, strict=True)))
    return peak
