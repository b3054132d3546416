"""Sliding windows: which blocks tokens attend to, how many a sequence has, how much memory that saves."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from infer_cache import BlockHashes, LayerGroups, PagedKVCacheManager, max_blocks_in_window
from infer_cache.sliding_window import first_block_in_window


def attended_blocks(first_position: int, num_tokens: int, *, window: int, block_size: int) -> set[int]:
    """The definition, token by token: which blocks the tokens from `first_position` up to `num_tokens` attend to."""
    return {
        key // block_size
        for query in range(first_position, num_tokens)
        for key in range(query + 1)
        if query - key < window
    }


def admitted(num_tokens: int, *, window: int, max_chunk: int | None, block_size: int) -> PagedKVCacheManager:
    """A manager of one group with a window, with the sequence `a`."""
    manager = PagedKVCacheManager([num_tokens], block_size, windows=[window], max_chunk=max_chunk)
    manager.admit("a", num_tokens, manager.find([], num_tokens))
    return manager


@given(first_position=st.integers(0, 40), window=st.integers(1, 30), block_size=st.integers(1, 7))
def test_the_first_block_in_the_window_is_the_lowest_that_is_attended_to(
    first_position: int, window: int, block_size: int
) -> None:
    blocks = attended_blocks(first_position, first_position + 3, window=window, block_size=block_size)
    assert first_block_in_window(first_position, window=window, block_size=block_size) == min(blocks)


@given(
    num_tokens=st.integers(1, 40), window=st.integers(1, 20), max_chunk=st.integers(1, 12), block_size=st.integers(1, 7)
)
def test_max_blocks_in_window_is_what_a_chunk_attends_to_and_at_most_one_more(
    num_tokens: int, window: int, max_chunk: int, block_size: int
) -> None:
    most = max(
        len(attended_blocks(first, min(first + max_chunk, num_tokens), window=window, block_size=block_size))
        for first in range(num_tokens)
    )
    bound = max_blocks_in_window(num_tokens, window=window, max_chunk=max_chunk, block_size=block_size)
    assert most <= bound <= min(most + 1, -(-num_tokens // block_size))


@pytest.mark.parametrize(("window", "max_chunk"), [(None, 4), (5, None), (None, None)])
def test_without_a_window_or_a_chunk_size_every_block_is_kept(window: int | None, max_chunk: int | None) -> None:
    assert max_blocks_in_window(33, window=window, max_chunk=max_chunk, block_size=4) == 9
    assert first_block_in_window(33, window=None, block_size=4) == 0


@given(
    num_prompt=st.integers(1, 40),
    num_generated=st.integers(0, 12),
    window=st.integers(1, 20),
    max_chunk=st.integers(1, 9),
    block_size=st.integers(1, 7),
)
def test_a_sequence_has_what_it_attends_to_and_never_more_than_max_blocks_in_window(
    num_prompt: int, num_generated: int, window: int, max_chunk: int, block_size: int
) -> None:
    num_tokens = num_prompt + num_generated
    most = max_blocks_in_window(num_tokens, window=window, max_chunk=max_chunk, block_size=block_size)
    manager = PagedKVCacheManager([most], block_size, windows=[window], max_chunk=max_chunk)
    (edit,) = manager.admit("a", num_prompt, manager.find([], num_prompt))
    row = dict(enumerate(edit.block_ids))
    ends = [*range(max_chunk, num_prompt, max_chunk), num_prompt, *range(num_prompt + 1, num_tokens + 1)]
    for first, end in zip([0, *ends], ends, strict=False):
        edits = manager.try_extend("a", end, first_position=first)
        assert edits is not None
        row |= {edit.column + i: block_id for edit in edits for i, block_id in enumerate(edit.block_ids)}
        attended = {row[column] for column in attended_blocks(first, end, window=window, block_size=block_size)}
        assert attended <= set(manager.blocks("a"))
        assert len(manager.blocks("a")) <= most


@pytest.mark.covers("scheduling/prompt-reserved-whole")
def test_a_prompt_longer_than_the_window_reserves_what_one_chunk_attends_to() -> None:
    manager = admitted(40, window=5, max_chunk=8, block_size=4)
    assert len(manager.blocks("a")) == 4
    assert manager.capacity("a") == 16
    assert manager.costs(40, manager.find([], 40)) == [16]
    assert not PagedKVCacheManager([3], 4, windows=[5], max_chunk=8).fits(40, manager.find([], 40))


def test_a_prompt_after_a_hit_reserves_what_one_chunk_attends_to_from_there() -> None:
    manager = PagedKVCacheManager([30], 4, windows=[5], max_chunk=8, keeps_prefixes=True)
    hashes = BlockHashes(4).upto(list(range(80)), 80)
    for sequence_id in "ab":
        (edit,) = manager.admit(sequence_id, 80, hit := manager.find(hashes, 80))
        assert (edit.column, len(edit.block_ids)) == (max(0, hit.num_tokens // 4 - 1), 4)
        manager.try_extend(sequence_id, 16, first_position=8)
        manager.cache_blocks(sequence_id, hashes, 16)
    assert manager.capacity("b") == 28


def test_capacity_is_what_the_group_of_the_shortest_window_has_room_for() -> None:
    manager = PagedKVCacheManager([10, 10], 4, windows=[None, 5], max_chunk=8)
    full, windowed = manager.admit("a", 40, manager.find([], 40))
    assert (len(full.block_ids), len(windowed.block_ids), manager.capacity("a")) == (10, 4, 16)


@pytest.mark.covers("kv-cache/window-blocks")
def test_blocks_outside_the_window_are_free_at_once() -> None:
    manager = admitted(40, window=5, max_chunk=None, block_size=4)
    assert manager.num_free_blocks == 40 - 10
    outside = manager.blocks("a")[:3]
    assert manager.try_extend("a", 40, first_position=16) == []
    assert manager.num_free_blocks == 40 - 7
    assert not set(outside) & set(manager.blocks("a"))
    assert manager.audit() == []


def test_a_block_is_released_when_its_last_token_leaves_the_window() -> None:
    manager = admitted(20, window=5, max_chunk=None, block_size=4)
    counts = []
    for first_position in range(6, 14):
        manager.try_extend("a", 20, first_position=first_position)
        counts.append(len(manager.blocks("a")))
    assert counts == [5, 5, 4, 4, 4, 4, 3, 3]


def test_cached_blocks_outside_the_window_are_idle_at_once() -> None:
    manager = PagedKVCacheManager([10], 4, windows=[5], keeps_prefixes=True)
    hashes = BlockHashes(4).upto(list(range(40)), 40)
    manager.admit("a", 40, manager.find([], 40))
    manager.cache_blocks("a", hashes, 16)
    manager.try_extend("a", 40, first_position=16)
    assert (manager.num_free_blocks, manager.num_idle_blocks) == (3, 3)
    assert manager.find(hashes, 13).num_tokens == 16


def test_growth_that_does_not_fit_has_released_blocks_outside_the_window_and_nothing_else() -> None:
    manager = PagedKVCacheManager([5, 5], 4, windows=[None, 5])
    manager.admit("a", 20, manager.find([], 20))
    full, windowed = manager.blocks("a", 0), manager.blocks("a", 1)
    assert manager.try_extend("a", 21, first_position=20) is None
    assert manager.blocks("a", 0) == full
    assert manager.blocks("a", 1) == windowed[4:]


def test_layers_of_equal_window_share_a_group_and_the_longest_window_is_the_first() -> None:
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
    """Compute a prompt in chunks of 512, then token by token; return the most blocks that all layers had."""
    manager = PagedKVCacheManager([512] * len(layers.windows), 64, windows=layers.windows, max_chunk=512)
    manager.admit("a", num_prompt, manager.find([], num_prompt))
    peak = 0
    ends = [*range(512, num_prompt, 512), num_prompt, *range(num_prompt + 1, num_tokens + 1)]
    for first, end in zip([0, *ends], ends, strict=False):
        assert manager.try_extend("a", end, first_position=first) is not None
        counts = [len(manager.blocks("a", group)) for group in range(len(layers.windows))]
        peak = max(peak, sum(num_layers * count for num_layers, count in zip(layers.num_layers, counts, strict=True)))
    return peak
