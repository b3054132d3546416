"""The attention kernels with sinks, interpreted, against the reference. What belongs to no sequence is NaN."""

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from infer_kernels import paged_attention, plan_attention
from infer_kernels.attention.triton.plan import TritonAttentionPlan
from infer_kernels.checks.closeness import assert_attention_close
from infer_kernels.checks.inputs.batches import PagedBatch, random_paged_batch, random_sinks
from infer_kernels.checks.pairwise import parametrize_each_value, parametrize_pairwise
from infer_kernels.reference import paged_attention_reference

DTYPES = [torch.float32, torch.float16, torch.bfloat16]
RAGGED = [(1, 37), (7, 7), (0, 5), (1, 0), (23, 61), (1, 1)]  # (rows of q, tokens) of each sequence
SPLITS = [(1, 600), (1, 256), (1, 257), (20, 300), (1, 1)]  # around the decode kernel's splits of 256 keys


def attend(batch: PagedBatch, sinks: Tensor | None, *, batch_invariant: bool = False, **options: Any) -> Tensor:
    plan = plan_attention(**batch.layout, block_size=batch.block_size, device="cpu", batch_invariant=batch_invariant)
    assert isinstance(plan, TritonAttentionPlan)
    scale = batch.q.shape[2] ** -0.5
    return paged_attention(batch.q, batch.k_cache, batch.v_cache, plan, scale=scale, sinks=sinks, **options)


def reference(batch: PagedBatch, sinks: Tensor | None, **options: Any) -> Tensor:
    scale = batch.q.shape[2] ** -0.5
    return paged_attention_reference(
        batch.q, batch.k_cache, batch.v_cache, **batch.layout, scale=scale, sinks=sinks, **options
    )


@parametrize_pairwise(
    dtype=DTYPES,
    group=[1, 3, 8],
    head_dim=[16, 48, 64, 256],
    block_size=[5, 16, 64],
    options=[{}, {"window": 1}, {"window": 20}, {"soft_cap": 0.7}, {"window": 9, "soft_cap": 0.7}],
    batch_invariant=[False, True],
)
def test_ragged_batch_equals_reference(
    group: int, head_dim: int, block_size: int, dtype: torch.dtype, options: dict[str, Any], *, batch_invariant: bool
) -> None:
    batch = random_paged_batch(
        RAGGED, q_heads=2 * group, kv_heads=2, head_dim=head_dim, block_size=block_size, dtype=dtype
    )
    sinks = random_sinks(2 * group, dtype=dtype)
    attended = attend(batch, sinks, batch_invariant=batch_invariant, **options)
    assert_attention_close(attended, reference(batch, sinks, **options))


@parametrize_each_value(dtype=DTYPES, window=[None, 260, 300], shift=[-3.0, 4.0])
def test_joined_splits_equal_reference(window: int | None, dtype: torch.dtype, shift: float) -> None:
    batch = random_paged_batch(SPLITS, q_heads=6, kv_heads=2, head_dim=64, block_size=64, dtype=dtype)
    sinks = random_sinks(6, dtype=dtype) + shift
    assert_attention_close(attend(batch, sinks, window=window), reference(batch, sinks, window=window))


@pytest.mark.parametrize("sequences", [RAGGED, SPLITS])
def test_a_sink_above_all_scores_leaves_the_keys_their_small_share(sequences: list[tuple[int, int]]) -> None:
    batch = random_paged_batch(sequences, q_heads=3, kv_heads=1, head_dim=16, block_size=16)
    sinks = torch.tensor([9.0, 30.0, 60.0])
    expected = reference(batch, sinks)
    largest = expected.abs().amax((0, 2))[:, None]
    assert_attention_close(attend(batch, sinks) / largest, expected / largest)


@pytest.mark.parametrize("sequences", [RAGGED, SPLITS])
def test_a_sink_that_nothing_can_outweigh_leaves_zeros(sequences: list[tuple[int, int]]) -> None:
    batch = random_paged_batch(sequences, q_heads=2, kv_heads=1, head_dim=16, block_size=16)
    assert not attend(batch, torch.tensor([1e4, 1e30])).any()


@pytest.mark.parametrize("sequences", [RAGGED, SPLITS])
def test_a_sink_below_all_scores_changes_no_bit(sequences: list[tuple[int, int]]) -> None:
    batch = random_paged_batch(sequences, q_heads=2, kv_heads=1, head_dim=16, block_size=16)
    assert torch.equal(attend(batch, torch.tensor([-1e4, -float("inf")])), attend(batch, None))


@pytest.mark.parametrize("q_heads", [6, 40])
def test_each_head_has_its_own_sink(q_heads: int) -> None:
    batch = random_paged_batch([(1, 9), (5, 20)], q_heads=q_heads, kv_heads=2, head_dim=16, block_size=4)
    without = attend(batch, None)
    for head in range(0, q_heads, q_heads // 6):
        sinks = torch.full((q_heads,), -1e4)
        sinks[head] = 1e4
        expected = without.clone()
        expected[:, head] = 0.0
        assert torch.equal(attend(batch, sinks), expected)


@pytest.mark.parametrize("batch_invariant", [False, True])
def test_rows_of_an_empty_sequence_are_zeros(*, batch_invariant: bool) -> None:
    batch = random_paged_batch([(1, 0), (2, 0), (1, 3)], q_heads=2, kv_heads=1, head_dim=16, block_size=4)
    attended = attend(batch, torch.ones(2), batch_invariant=batch_invariant)
    assert torch.equal(attended[:3], torch.zeros(3, 2, 16))


@pytest.mark.parametrize("window", [None, 50, 270])
def test_a_sequence_alone_equals_itself_in_company_bit_for_bit(window: int | None) -> None:
    batch = random_paged_batch(SPLITS, q_heads=4, kv_heads=1, head_dim=64, block_size=32, dtype=torch.float16)
    sinks = random_sinks(4, dtype=torch.float16)
    together = attend(batch, sinks, window=window)
    for sequence in range(len(SPLITS)):
        rows = slice(int(batch.query_start[sequence]), int(batch.query_start[sequence + 1]))
        alone = plan_attention(
            query_start=torch.tensor([0, rows.stop - rows.start], dtype=torch.int32),
            seq_lens=batch.seq_lens[sequence : sequence + 1],
            block_table=batch.block_table[sequence : sequence + 1],
            block_size=32,
            device="cpu",
        )
        attended = paged_attention(
            batch.q[rows], batch.k_cache, batch.v_cache, alone, scale=0.125, window=window, sinks=sinks
        )
        assert torch.equal(attended, together[rows])


@pytest.mark.parametrize("window", [None, 50])
def test_chunks_of_a_prompt_and_invariant_decodes_have_its_bits(window: int | None) -> None:
    batch = random_paged_batch([(150, 150)], q_heads=4, kv_heads=2, head_dim=64, block_size=64)
    sinks = random_sinks(4)
    whole = attend(batch, sinks, window=window)
    for first, last in ((0, 37), (37, 87), (87, 149), (149, 150), (63, 64)):
        plan = plan_attention(
            query_start=torch.tensor([0, last - first], dtype=torch.int32),
            seq_lens=torch.tensor([last], dtype=torch.int32),
            block_table=batch.block_table,
            block_size=64,
            device="cpu",
            batch_invariant=True,
        )
        rows = slice(first, last)
        chunk = paged_attention(
            batch.q[rows], batch.k_cache, batch.v_cache, plan, scale=0.125, window=window, sinks=sinks
        )
        assert torch.equal(chunk, whole[rows])


@given(
    sequences=st.lists(st.tuples(st.integers(0, 20), st.integers(0, 40)), min_size=1, max_size=4),
    heads=st.sampled_from([(1, 1), (2, 2), (4, 1), (6, 2), (5, 1)]),
    head_dim=st.sampled_from([16, 32, 80]),
    block_size=st.integers(1, 33),
    window=st.none() | st.integers(1, 50),
    shift=st.floats(-20, 5),
    seed=st.integers(0, 1000),
)
def test_any_batch_equals_reference(
    sequences: list[tuple[int, int]],
    heads: tuple[int, int],
    head_dim: int,
    block_size: int,
    window: int | None,
    shift: float,
    seed: int,
) -> None:
    batch = random_paged_batch(
        [(rows, computed + rows) for rows, computed in sequences],
        q_heads=heads[0],
        kv_heads=heads[1],
        head_dim=head_dim,
        block_size=block_size,
        seed=seed,
    )
    sinks = random_sinks(heads[0], seed=seed) + shift
    assert_attention_close(attend(batch, sinks, window=window), reference(batch, sinks, window=window))
