"""Attention on a CPU, by C++ and by plain PyTorch, against the references.

What belongs to no sequence is NaN and must not show.
"""

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from infer_kernels import causal_attention, paged_attention, plan_attention
from infer_kernels.checks.closeness import assert_attention_close
from infer_kernels.checks.compiled.ahead_of_time import compile_only
from infer_kernels.checks.inputs.batches import PagedBatch, random_paged_batch
from infer_kernels.checks.pairwise import parametrize_pairwise
from infer_kernels.checks.threads import torch_threads
from infer_kernels.reference import paged_attention_reference

pytestmark = pytest.mark.usefixtures("cpu_path")

RAGGED = [(1, 37), (7, 7), (0, 5), (1, 0), (23, 61), (1, 1), (1, 32)]  # (rows of q, tokens) of each sequence
ORDERS: dict[str, dict[str, Any]] = {
    "head_major": {},
    "token_major": {"token_major": True},
    "transposed_keys": {"transposed_keys": True},
    "both": {"token_major": True, "transposed_keys": True},
}
SOME_ORDERS = ["token_major", "transposed_keys"]  # the C++ kernel takes the first
DTYPES = [torch.float32, torch.float16, torch.bfloat16]
NOWHERE = 10**6  # a block that no cache has

every_order = pytest.mark.parametrize("order", ORDERS)
some_orders = pytest.mark.parametrize("order", SOME_ORDERS)


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
    """Compute with two threads."""
    with torch_threads(2):
        yield


@pytest.mark.covers("kv-cache/any-block-size", "kv-cache/head-groups", "kv-cache/head-dims")
@parametrize_pairwise(
    order=SOME_ORDERS, group=[1, 2, 3, 5, 8], head_dim=[16, 48, 64, 128, 256, 512], block_size=[1, 5, 16, 64]
)
def test_ragged_batch_equals_reference(group: int, head_dim: int, block_size: int, order: str) -> None:
    batch = random_paged_batch(
        RAGGED, q_heads=2 * group, kv_heads=2, head_dim=head_dim, block_size=block_size, **ORDERS[order]
    )
    assert_attention_close(attention(batch), reference(batch))


@every_order
@pytest.mark.parametrize("dtype", DTYPES)
def test_memory_order_makes_no_difference(dtype: torch.dtype, order: str) -> None:
    batch = random_paged_batch(RAGGED, q_heads=6, kv_heads=2, head_dim=32, block_size=16, dtype=dtype, **ORDERS[order])
    assert_attention_close(attention(batch), reference(batch))


@parametrize_pairwise(order=[*ORDERS], cache_dtype=DTYPES, dtype=DTYPES)
def test_queries_of_another_dtype_than_the_cache_equal_reference(
    dtype: torch.dtype, cache_dtype: torch.dtype, order: str
) -> None:
    batch = random_paged_batch(
        RAGGED,
        q_heads=6,
        kv_heads=2,
        head_dim=32,
        block_size=16,
        dtype=dtype,
        cache_dtype=cache_dtype,
        **ORDERS[order],
    )
    attended, expected = attention(batch), reference(batch)
    assert attended.dtype == dtype
    if dtype == torch.float32 and cache_dtype == torch.float16:
        attended, expected = attended.half(), expected.half()  # the scores are no better than that
    assert_attention_close(attended, expected)


def test_a_kernel_takes_neither_queries_of_another_dtype_nor_transposed_keys() -> None:
    batch = random_paged_batch([(1, 4)], q_heads=2, kv_heads=1, head_dim=16, block_size=4, dtype=torch.float16)
    q, k_cache, v_cache = batch.q, batch.k_cache, batch.v_cache
    with compile_only(90):
        plan = plan_attention(**batch.layout, block_size=4, device="cpu")
        with pytest.raises(TypeError, match=r"`q` has dtype torch\.bfloat16 but `k_cache` has torch\.float16"):
            paged_attention(q.bfloat16(), k_cache, v_cache, plan, scale=1.0)
        with pytest.raises(ValueError, match=r"`k_cache` has stride 4 in its last dimension"):
            paged_attention(q, k_cache.mT.contiguous().mT, v_cache, plan, scale=1.0)


@pytest.mark.usefixtures("two_threads")
@parametrize_pairwise(
    order=SOME_ORDERS, dtype=[torch.float32, torch.bfloat16], window=[None, 129, 200], kv_heads=[1, 3]
)
def test_long_decodes_on_two_threads_equal_reference(
    kv_heads: int, window: int | None, dtype: torch.dtype, order: str
) -> None:
    batch = random_paged_batch(
        [(1, 128), (1, 129), (1, 40), (1, 300), (9, 140), (1, 255), (1, 1)],
        q_heads=3 * kv_heads,
        kv_heads=kv_heads,
        head_dim=32,
        block_size=16,
        dtype=dtype,
        **ORDERS[order],
    )
    assert_attention_close(attention(batch, window=window), reference(batch, window=window))


@parametrize_pairwise(order=SOME_ORDERS, window=[1, 2, 15, 16, 17, 32, 36, 37, 61, 1000], block_size=[5, 16])
def test_window_edges_equal_reference(window: int, block_size: int, order: str) -> None:
    batch = random_paged_batch(RAGGED, q_heads=4, kv_heads=1, head_dim=32, block_size=block_size, **ORDERS[order])
    assert_attention_close(attention(batch, window=window), reference(batch, window=window))


@pytest.mark.covers("kv-cache/window-reads")
@every_order
def test_window_reads_no_block_before_its_first(order: str) -> None:
    batch = random_paged_batch([(1, 90), (3, 70)], q_heads=2, kv_heads=1, head_dim=16, block_size=16, **ORDERS[order])
    expected = attention(batch, window=20)
    batch.block_table[0, : (90 - 20) // 16] = NOWHERE
    batch.block_table[1, : (70 - 22) // 16] = NOWHERE
    assert torch.equal(attention(batch, window=20), expected)


@every_order
@pytest.mark.parametrize("window", [None, 20])
def test_unused_entries_of_the_block_table_are_never_followed(window: int | None, order: str) -> None:
    batch = random_paged_batch(
        [(1, 90), (3, 70), (1, 20)], q_heads=2, kv_heads=1, head_dim=16, block_size=16, **ORDERS[order]
    )
    expected = attention(batch, window=window)
    for row, length in enumerate((90, 70, 20)):
        batch.block_table[row, -(-length // 16) :] = NOWHERE
    assert torch.equal(attention(batch, window=window), expected)


@every_order
@pytest.mark.parametrize("stale", [float("inf"), -float("inf"), 65504.0])
def test_memory_that_belongs_to_no_sequence_may_hold_anything(stale: float, order: str) -> None:
    batch = random_paged_batch(RAGGED, q_heads=4, kv_heads=2, head_dim=16, block_size=16, **ORDERS[order])
    expected = attention(batch)  # over NaN
    for cache in (batch.k_cache, batch.v_cache):
        cache.nan_to_num_(nan=stale)
    assert torch.equal(attention(batch), expected)


@some_orders
@pytest.mark.parametrize("window", [None, 9])
def test_soft_cap_equals_reference(window: int | None, order: str) -> None:
    batch = random_paged_batch(RAGGED, q_heads=4, kv_heads=2, head_dim=32, block_size=16, **ORDERS[order])
    assert_attention_close(attention(batch, window=window, soft_cap=0.7), reference(batch, window=window, soft_cap=0.7))


@some_orders
def test_layers_of_different_windows_share_a_plan(order: str) -> None:
    batch = random_paged_batch(RAGGED, q_heads=2, kv_heads=1, head_dim=16, block_size=16, **ORDERS[order])
    plan = plan_attention(**batch.layout, block_size=16, device="cpu")
    for window in (None, 5, 20, 5, None):
        out = paged_attention(batch.q, batch.k_cache, batch.v_cache, plan, scale=0.25, window=window)
        assert_attention_close(out, reference(batch, window=window))


def test_layers_of_different_heads_share_a_plan() -> None:
    shapes = [(2, 1, 16), (4, 2, 32), (4, 1, 16), (2, 1, 16)]
    batches = [
        random_paged_batch(
            RAGGED, q_heads=q_heads, kv_heads=kv_heads, head_dim=dim, block_size=16, transposed_keys=True
        )
        for q_heads, kv_heads, dim in shapes
    ]
    plan = plan_attention(**batches[0].layout, block_size=16, device="cpu")
    for batch in batches:
        scale = batch.q.shape[2] ** -0.5
        out = paged_attention(batch.q, batch.k_cache, batch.v_cache, plan, scale=scale)
        assert_attention_close(out, reference(batch))


@some_orders
def test_result_goes_to_out_or_to_a_fresh_tensor(order: str) -> None:
    batch = random_paged_batch(RAGGED, q_heads=2, kv_heads=1, head_dim=16, block_size=16, **ORDERS[order])
    plan = plan_attention(**batch.layout, block_size=16, device="cpu")
    out = torch.empty_like(batch.q)
    assert paged_attention(batch.q, batch.k_cache, batch.v_cache, plan, scale=0.25, out=out) is out
    assert torch.equal(paged_attention(batch.q, batch.k_cache, batch.v_cache, plan, scale=0.25), out)


@pytest.mark.covers("kv-cache/empty-sequence")
def test_rows_of_an_empty_sequence_are_zeros() -> None:
    batch = random_paged_batch([(1, 0), (2, 0), (1, 3)], q_heads=2, kv_heads=1, head_dim=16, block_size=4)
    assert torch.equal(attention(batch)[:3], torch.zeros(3, 2, 16))


def test_batch_of_no_tokens_is_empty() -> None:
    batch = random_paged_batch([(0, 4)], q_heads=2, kv_heads=1, head_dim=16, block_size=4)
    assert attention(batch).shape == (0, 2, 16)


@pytest.mark.covers("kv-cache/shuffled-tables")
@given(
    sequences=st.lists(st.tuples(st.integers(0, 20), st.integers(0, 40)), min_size=1, max_size=5),
    heads=st.sampled_from([(1, 1), (2, 2), (4, 1), (6, 2), (5, 1)]),
    block_size=st.integers(1, 33),
    window=st.none() | st.integers(1, 50),
    soft_cap=st.none() | st.floats(0.5, 50),
    order=st.sampled_from([*ORDERS]),
    seed=st.integers(0, 1000),
)
def test_any_batch_equals_reference(
    sequences: list[tuple[int, int]],
    heads: tuple[int, int],
    block_size: int,
    window: int | None,
    soft_cap: float | None,
    order: str,
    seed: int,
) -> None:
    batch = random_paged_batch(
        [(rows, computed + rows) for rows, computed in sequences],
        q_heads=heads[0],
        kv_heads=heads[1],
        head_dim=16,
        block_size=block_size,
        seed=seed,
        **ORDERS[order],
    )
    expected = reference(batch, window=window, soft_cap=soft_cap)
    assert_attention_close(attention(batch, window=window, soft_cap=soft_cap), expected)


@parametrize_pairwise(
    heads=[(1, 1), (6, 2), (5, 5)],
    tokens=[1, 2, 31],
    window=[None, 1, 7, 31, 100],
    soft_cap=[None, 0.7],
)
def test_causal_attention_equals_paged_reference(
    heads: tuple[int, int], tokens: int, window: int | None, soft_cap: float | None
) -> None:
    q_heads, kv_heads = heads
    batch = random_paged_batch([(tokens, tokens)], q_heads=q_heads, kv_heads=kv_heads, head_dim=16, block_size=tokens)
    k, v = (cache[batch.block_table[0, 0]].transpose(0, 1) for cache in (batch.k_cache, batch.v_cache))
    attended = causal_attention(batch.q, k, v, scale=0.25, window=window, soft_cap=soft_cap)
    assert_attention_close(attended, reference(batch, window=window, soft_cap=soft_cap))


def test_causal_attention_of_no_tokens_is_empty() -> None:
    empty = torch.empty(0, 2, 16)
    assert causal_attention(empty, empty, empty, scale=1.0).shape == (0, 2, 16)


@some_orders
@pytest.mark.parametrize("window", [None, 9])
def test_one_row_of_a_prompt_equals_reference(window: int | None, order: str) -> None:
    batch = random_paged_batch(
        [(1, 37), (1, 1), (3, 8)], q_heads=6, kv_heads=2, head_dim=32, block_size=16, **ORDERS[order]
    )
    plan = plan_attention(**batch.layout, block_size=16, device="cpu", is_prefill=torch.tensor([True, True, True]))
    attended = paged_attention(batch.q, batch.k_cache, batch.v_cache, plan, scale=32**-0.5, window=window)
    assert_attention_close(attended, reference(batch, window=window))


@pytest.mark.parametrize("window", [None, 700, 513])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_decodes_of_several_chunks_equal_reference(dtype: torch.dtype, window: int | None) -> None:
    lengths = [(1, 1400), (1, 511), (1, 513), (2, 1300)]
    batch = random_paged_batch(lengths, q_heads=3, kv_heads=1, head_dim=16, block_size=16, dtype=dtype)
    assert_attention_close(attention(batch, window=window), reference(batch, window=window))


def test_more_query_heads_than_a_tile_has_rows_equal_reference() -> None:
    batch = random_paged_batch([(1, 70), (3, 9)], q_heads=130, kv_heads=1, head_dim=16, block_size=16)
    assert_attention_close(attention(batch), reference(batch))
