"""Attention whose rows have the same bits in every batch, on a CPU. What belongs to no sequence is NaN."""

from collections.abc import Sequence
from itertools import pairwise

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from infer_kernels import paged_attention, plan_attention
from infer_kernels.checks.closeness import assert_attention_close
from infer_kernels.checks.inputs.batches import PagedBatch, random_paged_batch
from infer_kernels.checks.pairwise import parametrize_each_value, parametrize_pairwise
from infer_kernels.checks.threads import torch_threads
from infer_kernels.reference import paged_attention_reference

pytestmark = pytest.mark.usefixtures("cpu_path")

DTYPES = [torch.float32, torch.float16, torch.bfloat16]
RAGGED = [(1, 37), (7, 7), (0, 5), (1, 0), (23, 161), (1, 1), (1, 300)]  # (rows of q, tokens) of each sequence


def attend(batch: PagedBatch, *, window: int | None = None, soft_cap: float | None = None) -> Tensor:
    plan = plan_attention(**batch.layout, block_size=batch.block_size, device="cpu", batch_invariant=True)
    scale = batch.q.shape[2] ** -0.5
    out = torch.full_like(batch.q, float("nan"))
    return paged_attention(
        batch.q, batch.k_cache, batch.v_cache, plan, scale=scale, window=window, soft_cap=soft_cap, out=out
    )


def attend_part(
    batch: PagedBatch, sequence: int, start: int, stop: int, *, window: int | None, soft_cap: float | None = None
) -> Tensor:
    """Rows `start` to `stop` of the one sequence, alone; whatever comes later is in the cache already."""
    plan = plan_attention(
        query_start=torch.tensor([0, stop - start], dtype=torch.int32),
        seq_lens=torch.tensor([stop], dtype=torch.int32),
        block_table=batch.block_table[sequence : sequence + 1],
        block_size=batch.block_size,
        device="cpu",
        batch_invariant=True,
    )
    first = int(batch.query_start[sequence]) - int(batch.seq_lens[sequence]) + num_rows(batch, sequence)
    q = batch.q[first + start : first + stop]
    scale = q.shape[2] ** -0.5
    return paged_attention(q, batch.k_cache, batch.v_cache, plan, scale=scale, window=window, soft_cap=soft_cap)


def num_rows(batch: PagedBatch, sequence: int) -> int:
    return int(batch.query_start[sequence + 1] - batch.query_start[sequence])


def in_chunks(batch: PagedBatch, chunks: Sequence[int], *, window: int | None) -> Tensor:
    """The batch's only sequence, a prompt, a chunk at a time."""
    stops = torch.tensor(chunks).cumsum(0).tolist()
    parts = [
        attend_part(batch, 0, stop - chunk, stop, window=window) for chunk, stop in zip(chunks, stops, strict=True)
    ]
    return torch.cat(parts)


@parametrize_pairwise(
    dtype=DTYPES,
    group=[1, 3, 8, 20],
    head_dim=[16, 48, 256],
    options=[(None, None), (130, None), (9, 0.7)],
)
def test_ragged_batch_equals_reference(
    head_dim: int, group: int, dtype: torch.dtype, options: tuple[int | None, float | None]
) -> None:
    window, soft_cap = options
    batch = random_paged_batch(
        RAGGED, q_heads=2 * group, kv_heads=2, head_dim=head_dim, block_size=16, dtype=dtype, token_major=True
    )
    expected = paged_attention_reference(
        batch.q, batch.k_cache, batch.v_cache, **batch.layout, scale=head_dim**-0.5, window=window, soft_cap=soft_cap
    )
    assert_attention_close(attend(batch, window=window, soft_cap=soft_cap), expected)


@parametrize_each_value(
    threads=[1, 2],
    dtype=[torch.float32, torch.bfloat16],
    heads=[(4, 4, 16), (9, 3, 64), (8, 1, 128)],
    window=[None, 50],
)
def test_chunked_prefill_equals_whole_bit_for_bit(
    heads: tuple[int, int, int], window: int | None, dtype: torch.dtype, threads: int
) -> None:
    q_heads, kv_heads, head_dim = heads
    batch = random_paged_batch(
        [(300, 300)], q_heads=q_heads, kv_heads=kv_heads, head_dim=head_dim, block_size=16, dtype=dtype
    )
    with torch_threads(threads):
        whole = attend(batch, window=window)
        for chunks in ([37, 50, 62, 1, 150], [128, 172], [127, 2, 171]):
            assert torch.equal(in_chunks(batch, chunks, window=window), whole)


@parametrize_each_value(
    threads=[1, 2], dtype=[torch.float32, torch.bfloat16], options=[(None, None), (33, None), (None, 5.0)]
)
def test_row_by_row_equals_whole_bit_for_bit(
    dtype: torch.dtype, options: tuple[int | None, float | None], threads: int
) -> None:
    window, soft_cap = options
    batch = random_paged_batch([(140, 140)], q_heads=6, kv_heads=2, head_dim=32, block_size=16, dtype=dtype)
    with torch_threads(threads):
        whole = attend(batch, window=window, soft_cap=soft_cap)
        rows = [attend_part(batch, 0, i, i + 1, window=window, soft_cap=soft_cap) for i in range(140)]
    assert torch.equal(torch.cat(rows), whole)


@parametrize_pairwise(dtype=DTYPES, group=[1, 2, 3, 4, 5], head_dim=[16, 48, 80, 128, 256])
def test_a_decode_has_the_bits_of_its_row_in_a_prompt(dtype: torch.dtype, group: int, head_dim: int) -> None:
    """The C++ kernel multiplies keys and values of few rows where they lie, and packs them for many."""
    batch = random_paged_batch(
        [(140, 140)], q_heads=2 * group, kv_heads=2, head_dim=head_dim, block_size=16, dtype=dtype
    )
    whole = attend(batch)
    for row in (0, 63, 64, 100, 139):
        assert torch.equal(attend_part(batch, 0, row, row + 1, window=None)[0], whole[row])


@parametrize_pairwise(threads=[1, 2], dtype=[torch.float32, torch.bfloat16], window=[None, 20])
def test_a_sequence_alone_equals_itself_in_company_bit_for_bit(
    dtype: torch.dtype, window: int | None, threads: int
) -> None:
    sequences = [(1, 600), (1, 3), (20, 40), (1, 260), (64, 200), (1, 128), (1, 129)]
    batch = random_paged_batch(sequences, q_heads=4, kv_heads=2, head_dim=64, block_size=32, dtype=dtype)
    with torch_threads(threads):
        together = attend(batch, window=window)
        for sequence, (rows, length) in enumerate(sequences):
            first = int(batch.query_start[sequence])
            alone = attend_part(batch, sequence, length - rows, length, window=window)
            assert torch.equal(alone, together[first : first + rows])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("window", [None, 40])
def test_blocks_and_memory_order_change_no_bit(dtype: torch.dtype, window: int | None) -> None:
    results = [
        attend(
            random_paged_batch(
                [(50, 150), (1, 90)],
                q_heads=4,
                kv_heads=2,
                head_dim=32,
                block_size=block_size,
                dtype=dtype,
                token_major=token_major,
                consecutive=consecutive,
            ),
            window=window,
        )
        for block_size in (1, 5, 16, 64, 200)
        for token_major in (True, False)
        for consecutive in (True, False)
    ]
    assert all(torch.equal(other, results[0]) for other in results[1:])


@settings(max_examples=settings().max_examples // 3)
@given(
    length=st.integers(1, 270),
    cuts=st.lists(st.integers(1, 269), max_size=5),
    company=st.lists(st.tuples(st.integers(1, 40), st.integers(0, 200)), max_size=3),
    heads=st.sampled_from([(1, 1), (4, 1), (6, 2), (5, 5), (16, 2)]),
    block_size=st.integers(1, 40),
    window=st.none() | st.integers(1, 200),
    dtype=st.sampled_from(DTYPES),
)
def test_any_cut_of_a_prompt_in_any_company_equals_it_alone(
    length: int,
    cuts: list[int],
    company: list[tuple[int, int]],
    heads: tuple[int, int],
    block_size: int,
    window: int | None,
    dtype: torch.dtype,
) -> None:
    sequences = [(length, length), *((rows, rows + before) for rows, before in company)]
    batch = random_paged_batch(
        sequences, q_heads=heads[0], kv_heads=heads[1], head_dim=16, block_size=block_size, dtype=dtype
    )
    borders = [0, *sorted({cut for cut in cuts if cut < length}), length]
    chunks = [stop - start for start, stop in pairwise(borders)]
    assert torch.equal(in_chunks(batch, chunks, window=window), attend(batch, window=window)[:length])


def test_stale_blocks_before_the_window_change_nothing() -> None:
    batch = random_paged_batch([(1, 300), (3, 170)], q_heads=2, kv_heads=1, head_dim=16, block_size=16)
    expected = attend(batch, window=20)
    batch.block_table[0, : (300 - 20) // 16] = 0  # a block of NaN
    batch.block_table[1, : (170 - 22) // 16] = 0
    assert torch.equal(attend(batch, window=20), expected)


def test_more_scores_than_are_kept_at_once_change_no_bit() -> None:
    batch = random_paged_batch([(200, 700), (1, 700)], q_heads=32, kv_heads=16, head_dim=16, block_size=64)
    together = attend(batch)
    for row in (0, 77, 199):
        alone = attend_part(batch, 0, 500 + row, 501 + row, window=None)
        assert torch.equal(alone, together[row : row + 1])
    assert torch.equal(attend_part(batch, 1, 699, 700, window=None), together[200:])


def test_layers_of_different_windows_and_heads_share_a_plan() -> None:
    batch = random_paged_batch(RAGGED, q_heads=4, kv_heads=2, head_dim=16, block_size=16)
    plan = plan_attention(**batch.layout, block_size=16, device="cpu", batch_invariant=True)
    for window, q_heads in ((None, 4), (5, 4), (20, 2), (5, 2), (None, 2)):
        q = batch.q[:, :q_heads]
        out = paged_attention(q, batch.k_cache, batch.v_cache, plan, scale=0.25, window=window)
        expected = paged_attention_reference(q, batch.k_cache, batch.v_cache, **batch.layout, scale=0.25, window=window)
        assert_attention_close(out, expected)


def test_rows_of_empty_sequences_are_zeros() -> None:
    batch = random_paged_batch([(1, 0), (2, 0)], q_heads=2, kv_heads=1, head_dim=16, block_size=4)
    assert torch.equal(attend(batch), torch.zeros(3, 2, 16))
    empty = random_paged_batch([(0, 4)], q_heads=2, kv_heads=1, head_dim=16, block_size=4)
    assert attend(empty).shape == (0, 2, 16)
