"""Work lists are those that a plain loop makes."""

import hypothesis.strategies as st
import torch
from hypothesis import given

from infer_kernels.attention.plan import HostMetadata
from infer_kernels.attention.triton.paged_decode import SPLIT
from infer_kernels.attention.triton.work_lists import Capacity, DecodeWorkList, PrefillWorkList

Sequence = tuple[int, int, bool]  # rows, tokens before them, whether they are of a prompt

SEQUENCES = st.lists(
    st.one_of(
        st.tuples(st.sampled_from([0, 1]), st.integers(0, 5 * SPLIT), st.just(value=False)),
        st.tuples(st.integers(0, 70), st.integers(0, 300), st.just(value=True)),
    ),
    max_size=12,
)


def layout_of(sequences: list[Sequence]) -> HostMetadata:
    rows = torch.tensor([0, *(rows for rows, _, _ in sequences)], dtype=torch.int32)
    return HostMetadata(
        query_start=rows.cumsum(0).int(),
        seq_lens=torch.tensor([rows + before if rows else 0 for rows, before, _ in sequences], dtype=torch.int32),
        is_prefill=torch.tensor([is_prefill for _, _, is_prefill in sequences], dtype=torch.bool),
    )


@given(SEQUENCES, st.none() | st.integers(1, 3 * SPLIT))
def test_a_decode_has_a_piece_for_each_split_that_its_window_reaches(
    sequences: list[Sequence], window: int | None
) -> None:
    expected = []
    for index, (rows, before, is_prefill) in enumerate(sequences):
        if rows == 1 and not is_prefill:
            last = before // SPLIT
            first = 0 if window is None else max(0, before + 1 - window) // SPLIT
            expected += [[index, split] for split in range(first, last + 1)]
    items = DecodeWorkList(window).items(layout_of(sequences))
    assert items.dtype == torch.int32
    assert items.is_contiguous()
    assert items.tolist() == expected
    capacity = Capacity(max_seqs=12, max_tokens=1000, max_seq_len=5 * SPLIT + 1, max_splits=10**6)
    assert len(items) <= DecodeWorkList(window).max_items(capacity)


@given(SEQUENCES, st.sampled_from([1, 8, 16, 64]))
def test_a_prompt_has_a_piece_for_each_tile_and_those_with_most_keys_come_first(
    sequences: list[Sequence], queries: int
) -> None:
    tiles = [
        (-(before + first), index, first)
        for index, (rows, before, is_prefill) in enumerate(sequences)
        if is_prefill
        for first in range(0, rows, queries)
    ]
    items = PrefillWorkList(queries).items(layout_of(sequences))
    assert items.dtype == torch.int32
    assert items.is_contiguous()
    assert items.tolist() == [[index, first] for _, index, first in sorted(tiles, key=lambda tile: tile[0])]
