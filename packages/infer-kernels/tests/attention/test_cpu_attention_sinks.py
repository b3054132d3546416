"""Attention with sinks on a CPU, by C++ and by plain PyTorch, and without a cache.

What belongs to no sequence is NaN and must not show.
"""

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from infer_kernels import causal_attention, paged_attention, plan_attention
from infer_kernels.checks.closeness import assert_attention_close
from infer_kernels.checks.inputs.batches import PagedBatch, random_paged_batch, random_sinks
from infer_kernels.checks.pairwise import parametrize_each_value, parametrize_pairwise
from infer_kernels.checks.threads import torch_threads
from infer_kernels.reference import paged_attention_reference

pytestmark = pytest.mark.usefixtures("cpu_path")

DTYPES = [torch.float32, torch.float16, torch.bfloat16]
RAGGED = [(1, 37), (7, 7), (0, 5), (1, 0), (23, 61), (1, 1), (1, 300)]  # (rows of q, tokens) of each sequence
CHUNKS = [(1, 1400), (1, 511), (1, 513), (2, 1300), (40, 1100)]  # around the C++ kernel's chunks of 512 keys


def attend(batch: PagedBatch, sinks: Tensor | None, *, batch_invariant: bool = False, **options: Any) -> Tensor:
    plan = plan_attention(**batch.layout, block_size=batch.block_size, device="cpu", batch_invariant=batch_invariant)
    out = torch.full_like(batch.q, float("nan"))
    scale = batch.q.shape[2] ** -0.5
    return paged_attention(batch.q, batch.k_cache, batch.v_cache, plan, scale=scale, sinks=sinks, out=out, **options)


def reference(batch: PagedBatch, sinks: Tensor | None, **options: Any) -> Tensor:
    scale = batch.q.shape[2] ** -0.5
    return paged_attention_reference(
        batch.q, batch.k_cache, batch.v_cache, **batch.layout, scale=scale, sinks=sinks, **options
    )


def test_a_sink_is_one_more_score_without_a_value() -> None:
    batch = random_paged_batch([(1, 3)], q_heads=2, kv_heads=1, head_dim=16, block_size=3)
    keys, values = batch.k_cache[1, 0], batch.v_cache[1, 0]
    sinks = torch.tensor([0.7, -1.3])
    weights = (batch.q[0] @ keys.T / 4).exp()
    expected = weights @ values / (weights.sum(1) + sinks.exp())[:, None]
    assert_attention_close(attend(batch, sinks)[0], expected)
    assert_attention_close(reference(batch, sinks)[0], expected)


@parametrize_pairwise(
    dtype=DTYPES,
    group=[1, 2, 3, 8],
    head_dim=[16, 48, 64, 256],
    block_size=[1, 5, 16, 64],
    options=[{}, {"window": 1}, {"window": 20}, {"soft_cap": 0.7}, {"window": 9, "soft_cap": 0.7}],
)
def test_ragged_batch_equals_reference(
    group: int, head_dim: int, block_size: int, dtype: torch.dtype, options: dict[str, Any]
) -> None:
    batch = random_paged_batch(
        RAGGED, q_heads=2 * group, kv_heads=2, head_dim=head_dim, block_size=block_size, dtype=dtype
    )
    sinks = random_sinks(2 * group, dtype=dtype)
    assert_attention_close(attend(batch, sinks, **options), reference(batch, sinks, **options))


@parametrize_pairwise(dtype=[torch.float32, torch.bfloat16], window=[None, 513, 700], threads=[1, 2])
def test_decodes_and_prompts_of_several_chunks_equal_reference(
    window: int | None, dtype: torch.dtype, threads: int
) -> None:
    batch = random_paged_batch(CHUNKS, q_heads=3, kv_heads=1, head_dim=16, block_size=16, dtype=dtype)
    sinks = random_sinks(3, dtype=dtype) + 4
    with torch_threads(threads):
        assert_attention_close(attend(batch, sinks, window=window), reference(batch, sinks, window=window))


@pytest.mark.parametrize("sequences", [RAGGED, CHUNKS])
def test_a_sink_above_all_scores_leaves_the_keys_their_small_share(sequences: list[tuple[int, int]]) -> None:
    batch = random_paged_batch(sequences, q_heads=3, kv_heads=1, head_dim=16, block_size=16)
    sinks = torch.tensor([9.0, 30.0, 60.0])
    expected = reference(batch, sinks)
    largest = expected.abs().amax((0, 2))[:, None]
    assert_attention_close(attend(batch, sinks) / largest, expected / largest)


@pytest.mark.parametrize("sequences", [RAGGED, CHUNKS])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_sink_that_nothing_can_outweigh_leaves_zeros(sequences: list[tuple[int, int]], dtype: torch.dtype) -> None:
    batch = random_paged_batch(sequences, q_heads=2, kv_heads=1, head_dim=16, block_size=16, dtype=dtype)
    assert not attend(batch, torch.tensor([1e4, 1e30], dtype=dtype)).any()


@pytest.mark.parametrize("sequences", [RAGGED, CHUNKS])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_sink_below_all_scores_changes_nothing(sequences: list[tuple[int, int]], dtype: torch.dtype) -> None:
    batch = random_paged_batch(sequences, q_heads=2, kv_heads=1, head_dim=16, block_size=16, dtype=dtype)
    sinks = torch.tensor([-1e4, -float("inf")], dtype=dtype)
    assert_attention_close(attend(batch, sinks), attend(batch, None))


def test_each_head_has_its_own_sink() -> None:
    batch = random_paged_batch([(1, 9), (5, 20)], q_heads=6, kv_heads=2, head_dim=16, block_size=4)
    without, sinks = attend(batch, None), torch.full((6,), -1e4)
    for head in range(6):
        only_one = sinks.clone()
        only_one[head] = 1e4
        expected = without.clone()
        expected[:, head] = 0.0
        assert_attention_close(attend(batch, only_one), expected)


def test_queries_of_another_dtype_than_the_cache_equal_reference() -> None:
    batch = random_paged_batch(
        RAGGED, q_heads=4, kv_heads=2, head_dim=32, block_size=16, dtype=torch.float32, cache_dtype=torch.bfloat16
    )
    sinks = random_sinks(4, dtype=torch.float32)
    attended = attend(batch, sinks)
    assert attended.dtype == torch.float32
    assert_attention_close(attended, reference(batch, sinks))


def test_rows_of_empty_sequences_are_zeros() -> None:
    batch = random_paged_batch([(1, 0), (2, 0), (1, 3)], q_heads=2, kv_heads=1, head_dim=16, block_size=4)
    assert torch.equal(attend(batch, torch.ones(2))[:3], torch.zeros(3, 2, 16))


@parametrize_each_value(
    threads=[1, 2], dtype=[torch.float32, torch.bfloat16], options=[{}, {"window": 33}, {"soft_cap": 5.0}]
)
def test_row_by_row_equals_whole_bit_for_bit(dtype: torch.dtype, options: dict[str, Any], threads: int) -> None:
    batch = random_paged_batch([(140, 600)], q_heads=6, kv_heads=2, head_dim=32, block_size=16, dtype=dtype)
    sinks = random_sinks(6, dtype=dtype) + 3
    with torch_threads(threads):
        whole = attend(batch, sinks, batch_invariant=True, **options)
        for row in (0, 50, 51, 52, 53, 84, 85, 139):  # around position 512 and a window behind it
            plan = plan_attention(
                query_start=torch.tensor([0, 1], dtype=torch.int32),
                seq_lens=torch.tensor([461 + row], dtype=torch.int32),
                block_table=batch.block_table,
                block_size=16,
                device="cpu",
                batch_invariant=True,
            )
            q = batch.q[row : row + 1]
            alone = paged_attention(q, batch.k_cache, batch.v_cache, plan, scale=32**-0.5, sinks=sinks, **options)
            assert torch.equal(alone, whole[row : row + 1])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("window", [None, 520])
def test_a_sequence_alone_equals_itself_in_company_bit_for_bit(dtype: torch.dtype, window: int | None) -> None:
    batch = random_paged_batch(CHUNKS, q_heads=4, kv_heads=2, head_dim=32, block_size=16, dtype=dtype)
    sinks = random_sinks(4, dtype=dtype)
    together = attend(batch, sinks, batch_invariant=True, window=window)
    for sequence in range(len(CHUNKS)):
        rows = slice(int(batch.query_start[sequence]), int(batch.query_start[sequence + 1]))
        plan = plan_attention(
            query_start=torch.tensor([0, rows.stop - rows.start], dtype=torch.int32),
            seq_lens=batch.seq_lens[sequence : sequence + 1],
            block_table=batch.block_table[sequence : sequence + 1],
            block_size=16,
            device="cpu",
            batch_invariant=True,
        )
        alone = paged_attention(
            batch.q[rows], batch.k_cache, batch.v_cache, plan, scale=32**-0.5, window=window, sinks=sinks
        )
        assert torch.equal(alone, together[rows])


@given(
    sequences=st.lists(st.tuples(st.integers(0, 20), st.integers(0, 40)), min_size=1, max_size=5),
    heads=st.sampled_from([(1, 1), (2, 2), (4, 1), (6, 2), (5, 1)]),
    block_size=st.integers(1, 33),
    window=st.none() | st.integers(1, 50),
    soft_cap=st.none() | st.floats(0.5, 50),
    shift=st.floats(-20, 5),
    seed=st.integers(0, 1000),
)
def test_any_batch_equals_reference(
    sequences: list[tuple[int, int]],
    heads: tuple[int, int],
    block_size: int,
    window: int | None,
    soft_cap: float | None,
    shift: float,
    seed: int,
) -> None:
    batch = random_paged_batch(
        [(rows, computed + rows) for rows, computed in sequences],
        q_heads=heads[0],
        kv_heads=heads[1],
        head_dim=16,
        block_size=block_size,
        seed=seed,
    )
    sinks = random_sinks(heads[0], seed=seed) + shift
    options: dict[str, Any] = {"window": window, "soft_cap": soft_cap}
    assert_attention_close(attend(batch, sinks, **options), reference(batch, sinks, **options))


@parametrize_pairwise(
    heads=[(1, 1), (6, 2), (5, 5)], tokens=[1, 2, 31], window=[None, 1, 7, 31, 100], soft_cap=[None, 0.7], dtype=DTYPES
)
def test_causal_attention_equals_paged_reference(
    heads: tuple[int, int], tokens: int, window: int | None, soft_cap: float | None, dtype: torch.dtype
) -> None:
    q_heads, kv_heads = heads
    batch = random_paged_batch(
        [(tokens, tokens)], q_heads=q_heads, kv_heads=kv_heads, head_dim=16, block_size=tokens, dtype=dtype
    )
    sinks = random_sinks(q_heads, dtype=dtype)
    k, v = (cache[batch.block_table[0, 0]].transpose(0, 1) for cache in (batch.k_cache, batch.v_cache))
    attended = causal_attention(batch.q, k, v, scale=0.25, window=window, soft_cap=soft_cap, sinks=sinks)
    assert attended.dtype == dtype
    assert_attention_close(attended, reference(batch, sinks, window=window, soft_cap=soft_cap))
