"""The attention kernel, interpreted, against its reference. What belongs to no sequence is NaN and must not show."""

from unittest.mock import patch

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from infer_kernels import paged_attention, plan_attention
from infer_kernels.attention.triton.plan import TritonAttentionPlan
from infer_kernels.checks.closeness import assert_attention_close
from infer_kernels.checks.inputs.batches import PagedBatch, random_paged_batch
from infer_kernels.checks.pairwise import parametrize_pairwise
from infer_kernels.gpu import Gpu
from infer_kernels.reference import paged_attention_reference

RAGGED = [(1, 37), (7, 7), (0, 5), (1, 0), (23, 61), (1, 1)]  # (rows of q, tokens) of each sequence


def attend(
    batch: PagedBatch,
    *,
    window: int | None = None,
    soft_cap: float | None = None,
    is_prefill: torch.Tensor | None = None,
) -> torch.Tensor:
    plan = plan_attention(**batch.layout, block_size=batch.block_size, device="cpu", is_prefill=is_prefill)
    assert isinstance(plan, TritonAttentionPlan)
    scale = batch.q.shape[2] ** -0.5
    return paged_attention(batch.q, batch.k_cache, batch.v_cache, plan, scale=scale, window=window, soft_cap=soft_cap)


def reference(batch: PagedBatch, *, window: int | None = None, soft_cap: float | None = None) -> torch.Tensor:
    scale = batch.q.shape[2] ** -0.5
    return paged_attention_reference(
        batch.q, batch.k_cache, batch.v_cache, **batch.layout, scale=scale, window=window, soft_cap=soft_cap
    )


@pytest.mark.covers("kv-cache/head-dims")
@parametrize_pairwise(group=[1, 3, 4, 8], head_dim=[16, 48, 64, 96, 128, 256, 512], block_size=[1, 5, 16, 64])
def test_ragged_batch_equals_reference(group: int, head_dim: int, block_size: int) -> None:
    batch = random_paged_batch(RAGGED, q_heads=2 * group, kv_heads=2, head_dim=head_dim, block_size=block_size)
    assert_attention_close(attend(batch), reference(batch))


@parametrize_pairwise(dtype=[torch.float16, torch.bfloat16], head_dim=[64, 96, 128, 256, 512], block_size=[5, 32])
def test_half_precision_equals_reference(dtype: torch.dtype, head_dim: int, block_size: int) -> None:
    batch = random_paged_batch(RAGGED, q_heads=6, kv_heads=2, head_dim=head_dim, block_size=block_size, dtype=dtype)
    assert_attention_close(attend(batch), reference(batch))


@pytest.mark.parametrize("window", [1, 2, 15, 16, 17, 36, 37, 61, 1000])
@pytest.mark.parametrize("block_size", [5, 16])
def test_window_edges_equal_reference(window: int, block_size: int) -> None:
    batch = random_paged_batch(RAGGED, q_heads=4, kv_heads=1, head_dim=32, block_size=block_size)
    assert_attention_close(attend(batch, window=window), reference(batch, window=window))


@pytest.mark.covers("kv-cache/window-reads")
def test_window_reads_no_block_before_its_first() -> None:
    batch = random_paged_batch([(1, 90), (3, 70)], q_heads=2, kv_heads=1, head_dim=16, block_size=16)
    expected = reference(batch, window=20)
    batch.block_table[0, : (90 - 20) // 16] = 0  # a block of NaN
    batch.block_table[1, : (70 - 22) // 16] = 0
    assert_attention_close(attend(batch, window=20), expected)


@pytest.mark.parametrize("window", [None, 9])
def test_soft_cap_equals_reference(window: int | None) -> None:
    batch = random_paged_batch(RAGGED, q_heads=4, kv_heads=2, head_dim=32, block_size=16)
    assert_attention_close(attend(batch, window=window, soft_cap=0.7), reference(batch, window=window, soft_cap=0.7))


@pytest.mark.parametrize("capability", [(8, 0), (9, 0), (12, 0)])
@pytest.mark.parametrize("token_major", [False, True])
def test_configurations_of_every_architecture_equal_reference(
    capability: tuple[int, int], *, token_major: bool
) -> None:
    batch = random_paged_batch(
        RAGGED, q_heads=4, kv_heads=1, head_dim=128, block_size=64, dtype=torch.float16, token_major=token_major
    )
    with patch("infer_kernels.attention.paged.describe_gpu", return_value=Gpu(capability, 4)):
        plan = plan_attention(**batch.layout, block_size=64, device="cpu")
    attended = paged_attention(batch.q, batch.k_cache, batch.v_cache, plan, scale=128**-0.5)
    assert_attention_close(attended, reference(batch))


@pytest.mark.covers("kv-cache/head-groups")
def test_group_wider_than_a_decode_tile_equals_reference() -> None:
    batch = random_paged_batch(RAGGED, q_heads=40, kv_heads=1, head_dim=16, block_size=16)
    assert_attention_close(attend(batch), reference(batch))


@pytest.mark.covers("kv-cache/empty-sequence")
def test_rows_of_an_empty_sequence_are_zeros() -> None:
    batch = random_paged_batch([(1, 0), (2, 0), (1, 3)], q_heads=2, kv_heads=1, head_dim=16, block_size=4)
    assert torch.equal(attend(batch)[:3], torch.zeros(3, 2, 16))


@pytest.mark.covers("kv-cache/shuffled-tables")
@given(
    sequences=st.lists(st.tuples(st.integers(0, 20), st.integers(0, 40)), min_size=1, max_size=4),
    heads=st.sampled_from([(1, 1), (2, 2), (4, 1), (6, 2), (5, 1)]),
    head_dim=st.sampled_from([16, 32, 80]),
    block_size=st.integers(1, 33),
    window=st.none() | st.integers(1, 50),
    token_major=st.booleans(),
    seed=st.integers(0, 1000),
)
def test_any_batch_equals_reference(
    sequences: list[tuple[int, int]],
    heads: tuple[int, int],
    head_dim: int,
    block_size: int,
    window: int | None,
    seed: int,
    *,
    token_major: bool,
) -> None:
    batch = random_paged_batch(
        [(rows, computed + rows) for rows, computed in sequences],
        q_heads=heads[0],
        kv_heads=heads[1],
        head_dim=head_dim,
        block_size=block_size,
        token_major=token_major,
        seed=seed,
    )
    assert_attention_close(attend(batch, window=window), reference(batch, window=window))
