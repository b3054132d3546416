"""Attention that a CPU alone has: queries of another dtype than the cache, and a sequence without a cache.

All else is in `test_attention.py`, on every path. What belongs to no sequence is NaN and must not show.
"""

from typing import Any

import pytest
import torch

from infer_kernels import causal_attention, paged_attention, plan_attention
from infer_kernels.checks.closeness import assert_attention_close
from infer_kernels.checks.inputs.batches import random_paged_batch, random_sinks
from infer_proofs.kernels.compiled.ahead_of_time import launch_only
from infer_proofs.kernels.inputs.batch_attention import attend, attend_by_reference, part_of
from infer_proofs.kernels.pairwise import parametrize_pairwise

RAGGED = [(1, 37), (7, 7), (0, 5), (1, 0), (23, 61), (1, 1), (1, 32), (1, 300)]  # (rows of q, tokens) of each sequence
DTYPES = [torch.float32, torch.float16, torch.bfloat16]
ORDERS: dict[str, dict[str, Any]] = {
    "head_major": {},
    "token_major": {"token_major": True},
    "transposed_keys": {"transposed_keys": True},
    "both": {"token_major": True, "transposed_keys": True},
}

on_both_paths = pytest.mark.usefixtures("cpu_path")


@on_both_paths
@parametrize_pairwise(order=[*ORDERS], cache_dtype=DTYPES, dtype=DTYPES, has_sinks=[False, True])
def test_queries_of_another_dtype_than_the_cache_equal_reference(
    order: str, cache_dtype: torch.dtype, dtype: torch.dtype, *, has_sinks: bool
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
    sinks = random_sinks(6, dtype=dtype) if has_sinks else None
    attended, expected = attend(batch, sinks=sinks), attend_by_reference(batch, sinks=sinks)
    assert attended.dtype == dtype
    if dtype == torch.float32 and cache_dtype == torch.float16:
        attended, expected = attended.half(), expected.half()  # the scores are no better than that
    assert_attention_close(attended, expected)


@on_both_paths
@parametrize_pairwise(dtype=DTYPES, group=[1, 2, 3, 4, 5], head_dim=[16, 48, 80, 128, 256])
def test_a_decode_has_the_bits_of_its_row_in_a_prompt(dtype: torch.dtype, group: int, head_dim: int) -> None:
    """The C++ kernel multiplies keys and values of few rows where they lie, and packs them for many."""
    batch = random_paged_batch(
        [(140, 140)], q_heads=2 * group, kv_heads=2, head_dim=head_dim, block_size=16, dtype=dtype
    )
    whole = attend(batch, batch_invariant=True)
    for row in (0, 63, 64, 100, 139):
        assert torch.equal(attend(part_of(batch, 0, row, row + 1), batch_invariant=True)[0], whole[row])


def test_a_kernel_takes_neither_queries_of_another_dtype_nor_transposed_keys() -> None:
    batch = random_paged_batch([(1, 4)], q_heads=2, kv_heads=1, head_dim=16, block_size=4, dtype=torch.float16)
    q, k_cache, v_cache = batch.q, batch.k_cache, batch.v_cache
    with launch_only(90):
        plan = plan_attention(**batch.layout, block_size=4, device="cpu")
        with pytest.raises(TypeError, match=r"`q` has dtype torch\.bfloat16 but `k_cache` has torch\.float16"):
            paged_attention(q.bfloat16(), k_cache, v_cache, plan, scale=1.0)
        with pytest.raises(ValueError, match=r"`k_cache` has stride 4 in its last dimension"):
            paged_attention(q, k_cache.mT.contiguous().mT, v_cache, plan, scale=1.0)


@parametrize_pairwise(
    heads=[(1, 1), (6, 2), (5, 5)],
    tokens=[1, 2, 31],
    window=[None, 1, 7, 31, 100],
    soft_cap=[None, 0.7],
    dtype=DTYPES,
    has_sinks=[False, True],
)
def test_causal_attention_equals_paged_reference(
    heads: tuple[int, int],
    tokens: int,
    window: int | None,
    soft_cap: float | None,
    dtype: torch.dtype,
    *,
    has_sinks: bool,
) -> None:
    q_heads, kv_heads = heads
    batch = random_paged_batch(
        [(tokens, tokens)], q_heads=q_heads, kv_heads=kv_heads, head_dim=16, block_size=tokens, dtype=dtype
    )
    options: dict[str, Any] = {"window": window, "soft_cap": soft_cap}
    options["sinks"] = random_sinks(q_heads, dtype=dtype) if has_sinks else None
    k, v = (cache[batch.block_table[0, 0]].transpose(0, 1) for cache in (batch.k_cache, batch.v_cache))
    attended = causal_attention(batch.q, k, v, scale=0.25, **options)
    assert attended.dtype == dtype
    assert_attention_close(attended, attend_by_reference(batch, **options))


def test_causal_attention_of_no_tokens_is_empty() -> None:
    empty = torch.empty(0, 2, 16)
    assert causal_attention(empty, empty, empty, scale=1.0).shape == (0, 2, 16)
