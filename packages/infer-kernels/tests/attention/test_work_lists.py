"""Work lists are those that a plain loop makes, on the host, and on the device, where Triton is interpreted."""

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import given

from infer_kernels.attention.plan import HostMetadata
from infer_kernels.attention.triton.paged_decode import SPLIT
from infer_kernels.attention.triton.plan_memory import upload_metadata
from infer_kernels.attention.triton.work_lists import Capacity, DecodeWorkList, PrefillWorkList, WorkList
from infer_proofs.kernels.pairwise import parametrize_each_value

Sequence = tuple[int, int, bool]  # rows, tokens with those of the rows, whether they are of a prompt

SEQUENCES = st.lists(
    st.one_of(
        st.tuples(st.sampled_from([0, 1, 1]), st.integers(1, 5 * SPLIT), st.just(value=False)),
        st.tuples(st.integers(0, 70), st.integers(70, 300), st.just(value=True)),
    ),
    min_size=1,
    max_size=9,
)
LISTS = st.one_of(
    st.builds(DecodeWorkList, st.none() | st.integers(1, 3 * SPLIT)),
    st.builds(PrefillWorkList, st.sampled_from([1, 8, 13, 64])),
)
triton_only = pytest.mark.usefixtures("triton_only")


def layout_of(sequences: list[Sequence]) -> HostMetadata:
    rows, lengths, is_prefill = (list(column) for column in zip(*sequences, strict=True))
    return HostMetadata(
        query_start=torch.tensor([0, *rows]).cumsum(0).int(),
        seq_lens=torch.tensor(lengths, dtype=torch.int32),
        is_prefill=torch.tensor(is_prefill, dtype=torch.bool),
    )


def made_on_device(work: WorkList, layout: HostMetadata, *, max_items: int) -> torch.Tensor:
    """[2 + 2 * max_items + 6], of which the last 6 belong to somebody else."""
    metadata = upload_metadata(layout, torch.zeros(len(layout.seq_lens), 1, dtype=torch.int32), torch.device("cpu"))
    made = torch.full((2 + 2 * max_items + 6,), -7, dtype=torch.int32)
    work.make(made[:-6], metadata)
    assert made[-6:].tolist() == [-7] * 6
    return made[:-6]


def assert_equals_reference(work: WorkList, layout: HostMetadata) -> None:
    expected = work.items(layout)
    num_items = work.num_items(layout)
    assert num_items == len(expected)
    made = made_on_device(work, layout, max_items=num_items + 2)
    assert made[:2].tolist() == [num_items, 0]
    assert torch.equal(made[2:-4].view(-1, 2), expected)


@given(SEQUENCES, st.none() | st.integers(1, 3 * SPLIT))
def test_a_decode_has_a_piece_for_each_split_that_its_window_reaches(
    sequences: list[Sequence], window: int | None
) -> None:
    expected = []
    for index, (rows, length, is_prefill) in enumerate(sequences):
        if rows == 1 and not is_prefill:
            first = 0 if window is None else max(0, length - window) // SPLIT
            expected += [[index, split] for split in range(first, (length - 1) // SPLIT + 1)]
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
        (-(length - rows + first), index, first)
        for index, (rows, length, is_prefill) in enumerate(sequences)
        if is_prefill
        for first in range(0, rows, queries)
    ]
    items = PrefillWorkList(queries).items(layout_of(sequences))
    assert items.dtype == torch.int32
    assert items.is_contiguous()
    assert items.tolist() == [[index, first] for _, index, first in sorted(tiles, key=lambda tile: tile[0])]


@triton_only
@given(SEQUENCES, LISTS)
def test_any_list_equals_reference(sequences: list[Sequence], work: WorkList) -> None:
    assert_equals_reference(work, layout_of(sequences))


@triton_only
@pytest.mark.parametrize("window", [None, 1, 255, 256, 257, 512])
def test_splits_at_the_edges_of_windows_equal_reference(window: int | None) -> None:
    edges = [0, 1, 2, 255, 256, 257, 511, 512, 513, 768, 769, 2**31 - 1 if window else 5000]
    assert_equals_reference(DecodeWorkList(window), layout_of([(1, length, False) for length in edges]))


@triton_only
@parametrize_each_value(seqs=[1, 127, 128, 129, 257], work=[DecodeWorkList(300), PrefillWorkList(32)])
def test_as_many_sequences_as_there_are_equal_reference(seqs: int, work: WorkList) -> None:
    generator = torch.Generator().manual_seed(seqs)
    rows, before = torch.randint(0, 70, (2, seqs), generator=generator).tolist()
    sequences = [(rows[i], rows[i] + before[i], True) if i % 3 == 0 else (1, before[i] * 9, False) for i in range(seqs)]
    assert_equals_reference(work, layout_of(sequences))


@triton_only
def test_prompt_of_many_tiles_among_others_equals_reference() -> None:
    sequences = [(40, 1000, True), (700, 700, True), (1, 9, False), (700, 1337, True), (40, 1000, True)]
    assert_equals_reference(PrefillWorkList(16), layout_of(sequences))


@triton_only
def test_sequences_of_as_many_keys_keep_their_order() -> None:
    made = made_on_device(PrefillWorkList(8), layout_of([(16, 16, True)] * 3), max_items=6)
    assert made[2:].view(-1, 2).tolist() == [[0, 8], [1, 8], [2, 8], [0, 0], [1, 0], [2, 0]]


@triton_only
@pytest.mark.parametrize("work", [DecodeWorkList(None), PrefillWorkList(8)])
def test_items_that_do_not_fit_are_left_out(work: WorkList) -> None:
    layout = layout_of([(1, 1000, False), (30, 30, True), (1, 1000, False), (30, 30, True)])
    made = made_on_device(work, layout, max_items=5)
    assert made[:2].tolist() == [5, 0]
    assert torch.equal(made[2:].view(-1, 2), work.items(layout)[:5])
