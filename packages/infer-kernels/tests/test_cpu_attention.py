"""Attention's plain-torch paths against the references. What belongs to no sequence is NaN and must not show."""

from collections.abc import Iterator

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from infer_kernels import causal_attention, paged_attention, paged_attention_reference, plan_attention
from infer_kernels.testing.batches import PagedBatch, random_paged_batch
from infer_kernels.testing.closeness import assert_attention_close
from infer_kernels.testing.threads import torch_threads

RAGGED = [(1, 37), (7, 7), (0, 5), (1, 0), (23, 61), (1, 1)]  # (rows of q, tokens) of each sequence


def attention(batch: PagedBatch, *, window: int | None = None, soft_cap: float | None = None) -> torch.Tensor:
    plan = plan_attention(**batch.layout, block_size=batch.block_size, device="cpu")
    scale = batch.q.shape[2] ** -0.5
    out = torch.full_like(batch.q, float("nan"))
    return paged_attention(
        batch.q, batch.k_cache, batch.v_cache, plan, scale=scale, window=window, soft_cap=soft_cap, out=out
    )


def reference(batch: PagedBatch, *, window: int | None = None, soft_cap: float | None = None) -> torch.Tensor:
    scale = batch.q.shape[2] ** -0.5
    return paged_attention_reference(
        batch.q, batch.k_cache, batch.v_cache, **batch.layout, scale=scale, window=window, soft_cap=soft_cap
    )


@pytest.fixture
def two_threads() -> Iterator[None]:
    """Compute with two threads, as where three heads cannot be shared out evenly."""
    with torch_threads(2):
        yield


@pytest.mark.parametrize("group", [1, 3, 4, 8])
@pytest.mark.parametrize("head_dim", [16, 48, 64, 96, 128, 256])
@pytest.mark.parametrize("block_size", [1, 5, 16, 64])
def test_ragged_batch_equals_reference(group: int, head_dim: int, block_size: int) -> None:
    batch = random_paged_batch(RAGGED, q_heads=2 * group, kv_heads=2, head_dim=head_dim, block_size=block_size)
    assert_attention_close(attention(batch), reference(batch))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("token_major", [True, False])
@pytest.mark.parametrize("consecutive", [True, False])
def test_memory_order_and_consecutive_blocks_make_no_difference(
    dtype: torch.dtype, *, token_major: bool, consecutive: bool
) -> None:
    batch = random_paged_batch(
        RAGGED,
        q_heads=6,
        kv_heads=2,
        head_dim=32,
        block_size=16,
        dtype=dtype,
        token_major=token_major,
        consecutive=consecutive,
    )
    assert_attention_close(attention(batch), reference(batch))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("window", [None, 129, 200])
@pytest.mark.parametrize("kv_heads", [1, 2, 3])
def test_long_decodes_on_two_threads_equal_reference(
    two_threads: None,  # noqa: ARG001 - a fixture for what it does
    kv_heads: int,
    window: int | None,
    dtype: torch.dtype,
) -> None:
    batch = random_paged_batch(
        [(1, 128), (1, 129), (1, 40), (1, 300), (9, 140), (1, 255), (1, 1)],
        q_heads=3 * kv_heads,
        kv_heads=kv_heads,
        head_dim=32,
        block_size=16,
        dtype=dtype,
        token_major=True,
        consecutive=True,
    )
    assert_attention_close(attention(batch, window=window), reference(batch, window=window))


@pytest.mark.parametrize("window", [1, 2, 15, 16, 17, 36, 37, 61, 1000])
@pytest.mark.parametrize("block_size", [5, 16])
@pytest.mark.parametrize("consecutive", [True, False])
def test_window_edges_equal_reference(window: int, block_size: int, *, consecutive: bool) -> None:
    batch = random_paged_batch(
        RAGGED,
        q_heads=4,
        kv_heads=1,
        head_dim=32,
        block_size=block_size,
        token_major=True,
        consecutive=consecutive,
    )
    assert_attention_close(attention(batch, window=window), reference(batch, window=window))


def test_window_reads_no_block_before_its_first() -> None:
    batch = random_paged_batch([(1, 90), (3, 70)], q_heads=2, kv_heads=1, head_dim=16, block_size=16)
    expected = reference(batch, window=20)
    batch.block_table[0, : (90 - 20) // 16] = 0  # a block of NaN
    batch.block_table[1, : (70 - 22) // 16] = 0
    assert_attention_close(attention(batch, window=20), expected)


@pytest.mark.usefixtures("two_threads")
@pytest.mark.parametrize("stale", [0, 30])  # a block of NaN, and one that the second sequence uses
def test_a_run_within_the_window_is_read_as_one_whatever_comes_before(stale: int) -> None:
    batch = random_paged_batch(
        [(1, 290 + i) for i in range(4)], q_heads=6, kv_heads=3, head_dim=32, block_size=16, token_major=True,
        consecutive=True, dtype=torch.bfloat16,
    )  # fmt: skip
    expected = attention(batch, window=200)
    batch.block_table[:, : (290 - 200) // 16] = stale
    # Runs are attended in halves, which shows in their bits; gathered blocks are not.
    assert torch.equal(attention(batch, window=200), expected)


@pytest.mark.parametrize("window", [None, 9])
def test_soft_cap_equals_reference(window: int | None) -> None:
    batch = random_paged_batch(RAGGED, q_heads=4, kv_heads=2, head_dim=32, block_size=16)
    assert_attention_close(attention(batch, window=window, soft_cap=0.7), reference(batch, window=window, soft_cap=0.7))


def test_layers_of_different_windows_share_a_plan() -> None:
    batch = random_paged_batch(RAGGED, q_heads=2, kv_heads=1, head_dim=16, block_size=16)
    plan = plan_attention(**batch.layout, block_size=16, device="cpu")
    for window in (None, 5, 20, 5, None):
        out = paged_attention(batch.q, batch.k_cache, batch.v_cache, plan, scale=0.25, window=window)
        assert_attention_close(out, reference(batch, window=window))


def test_result_goes_to_out_or_to_a_fresh_tensor() -> None:
    batch = random_paged_batch(RAGGED, q_heads=2, kv_heads=1, head_dim=16, block_size=16)
    plan = plan_attention(**batch.layout, block_size=16, device="cpu")
    out = torch.empty_like(batch.q)
    assert paged_attention(batch.q, batch.k_cache, batch.v_cache, plan, scale=0.25, out=out) is out
    assert torch.equal(paged_attention(batch.q, batch.k_cache, batch.v_cache, plan, scale=0.25), out)


def test_rows_of_an_empty_sequence_are_zeros() -> None:
    batch = random_paged_batch([(1, 0), (2, 0), (1, 3)], q_heads=2, kv_heads=1, head_dim=16, block_size=4)
    assert torch.equal(attention(batch)[:3], torch.zeros(3, 2, 16))


def test_batch_of_no_tokens_is_empty() -> None:
    batch = random_paged_batch([(0, 4)], q_heads=2, kv_heads=1, head_dim=16, block_size=4)
    assert attention(batch).shape == (0, 2, 16)


@given(
    sequences=st.lists(st.tuples(st.integers(0, 20), st.integers(0, 40)), min_size=1, max_size=5),
    heads=st.sampled_from([(1, 1), (2, 2), (4, 1), (6, 2), (5, 1)]),
    block_size=st.integers(1, 33),
    window=st.none() | st.integers(1, 50),
    soft_cap=st.none() | st.floats(0.5, 50),
    order=st.tuples(st.booleans(), st.booleans()),
    seed=st.integers(0, 1000),
)
def test_any_batch_equals_reference(
    sequences: list[tuple[int, int]],
    heads: tuple[int, int],
    block_size: int,
    window: int | None,
    soft_cap: float | None,
    order: tuple[bool, bool],
    seed: int,
) -> None:
    batch = random_paged_batch(
        [(rows, computed + rows) for rows, computed in sequences],
        q_heads=heads[0],
        kv_heads=heads[1],
        head_dim=16,
        block_size=block_size,
        token_major=order[0],
        consecutive=order[1],
        seed=seed,
    )
    expected = reference(batch, window=window, soft_cap=soft_cap)
    assert_attention_close(attention(batch, window=window, soft_cap=soft_cap), expected)


@pytest.mark.parametrize(("q_heads", "kv_heads"), [(1, 1), (6, 2), (5, 5)])
@pytest.mark.parametrize("tokens", [1, 2, 31])
@pytest.mark.parametrize("window", [None, 1, 7, 31, 100])
@pytest.mark.parametrize("soft_cap", [None, 0.7])
def test_causal_attention_equals_paged_reference(
    q_heads: int, kv_heads: int, tokens: int, window: int | None, soft_cap: float | None
) -> None:
    batch = random_paged_batch([(tokens, tokens)], q_heads=q_heads, kv_heads=kv_heads, head_dim=16, block_size=tokens)
    k, v = (cache[batch.block_table[0, 0]].transpose(0, 1) for cache in (batch.k_cache, batch.v_cache))
    attended = causal_attention(batch.q, k, v, scale=0.25, window=window, soft_cap=soft_cap)
    assert_attention_close(attended, reference(batch, window=window, soft_cap=soft_cap))


def test_causal_attention_of_no_tokens_is_empty() -> None:
    empty = torch.empty(0, 2, 16)
    assert causal_attention(empty, empty, empty, scale=1.0).shape == (0, 2, 16)


@pytest.mark.parametrize("consecutive", [True, False])
@pytest.mark.parametrize("window", [None, 9])
def test_one_row_of_a_prompt_equals_reference(window: int | None, *, consecutive: bool) -> None:
    batch = random_paged_batch(
        [(1, 37), (1, 1), (3, 8)], q_heads=6, kv_heads=2, head_dim=32, block_size=16, token_major=True,
        consecutive=consecutive,
    )  # fmt: skip
    plan = plan_attention(**batch.layout, block_size=16, device="cpu", is_prefill=torch.tensor([True, True, True]))
    attended = paged_attention(batch.q, batch.k_cache, batch.v_cache, plan, scale=32**-0.5, window=window)
    assert_attention_close(attended, reference(batch, window=window))
