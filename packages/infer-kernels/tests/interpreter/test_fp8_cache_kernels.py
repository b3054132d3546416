"""Kernels over a cache of fp8 codes, interpreted, against their references."""

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from infer_kernels import KVScales, QKNorm, Rotary, paged_attention, plan_attention, qk_norm_rope_store, store_kv
from infer_kernels.reference import paged_attention_reference, qk_norm_rope_store_reference, store_kv_reference
from infer_kernels.testing.batches import PagedBatch, random_paged_batch
from infer_kernels.testing.closeness import assert_attention_close
from infer_kernels.testing.pairwise import parametrize_pairwise

FP8 = torch.float8_e4m3fn
DTYPES = [torch.float32, torch.float16, torch.bfloat16]
RAGGED = [(1, 37), (7, 7), (0, 5), (1, 0), (23, 61), (1, 1), (1, 300)]
SCALES = KVScales(keys=0.37, values=1.7)


def fp8_caches(kv_heads: int, head_dim: int, block_size: int) -> tuple[Tensor, Tensor]:
    shape = (40 // block_size, kv_heads, block_size, head_dim)
    return torch.full(shape, float("nan")).to(FP8), torch.full(shape, float("nan")).to(FP8)


def bits(cache: Tensor) -> Tensor:
    return cache.view(torch.uint8)


def fp8_batch(*, q_heads: int, kv_heads: int, head_dim: int, block_size: int, dtype: torch.dtype) -> PagedBatch:
    batch = random_paged_batch(
        RAGGED, q_heads=q_heads, kv_heads=kv_heads, head_dim=head_dim, block_size=block_size, dtype=dtype
    )
    k_cache, v_cache = (
        (cache.float() / scale).to(FP8)
        for cache, scale in ((batch.k_cache, SCALES.keys), (batch.v_cache, SCALES.values))
    )
    return replace(batch, k_cache=k_cache, v_cache=v_cache)


@parametrize_pairwise(dtype=DTYPES, head_dim=[16, 48, 80], block_size=[1, 5, 8])
def test_stored_codes_are_those_of_the_reference(dtype: torch.dtype, head_dim: int, block_size: int) -> None:
    k, v = (torch.randn(2, 7, 3, head_dim) * 300).to(dtype)
    k[0, 0, :3] = torch.tensor([float("nan"), float("inf"), -float("inf")])
    caches, slots = fp8_caches(3, head_dim, block_size), torch.tensor([3, -1, 39, 0, 17, 4, 11], dtype=torch.int32)
    expected = store_kv_reference(k, v, *caches, slots, scales=SCALES)
    store_kv(k, v, *caches, slots, scales=SCALES)
    assert all(torch.equal(bits(cache), bits(wanted)) for cache, wanted in zip(caches, expected, strict=True))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("tokens", [1, 7, 33])
def test_prepared_and_stored_codes_are_those_of_the_reference(dtype: torch.dtype, tokens: int) -> None:
    # Squares of small integers add up exactly in any order.
    qkv = torch.randint(-8, 9, (tokens, 5 + 2 * 2, 32)).to(dtype)
    angles = torch.randn(40, 16)
    rotary = Rotary(
        position_ids=torch.randint(40, (tokens,), dtype=torch.int32), cos_sin=torch.cat((angles.cos(), angles.sin()), 1)
    )
    norm = QKNorm(q_weight=torch.ones(32, dtype=dtype), k_weight=torch.ones(32, dtype=dtype), eps=1e-6, variant="llama")
    caches, slots = fp8_caches(2, 32, 8), torch.randperm(40)[:tokens].int()
    expected = qk_norm_rope_store_reference(qkv, *caches, slots, rotary=rotary, norm=norm, scales=SCALES)
    q = qk_norm_rope_store(qkv, *caches, slots, rotary=rotary, norm=norm, scales=SCALES)
    assert torch.equal(q, expected[0])
    assert all(torch.equal(bits(cache), bits(wanted)) for cache, wanted in zip(caches, expected[1:], strict=True))


@parametrize_pairwise(
    dtype=DTYPES,
    group=[1, 3, 8],
    head_dim=[16, 64, 128, 256],
    block_size=[1, 5, 64],
    window=[None, 20],
    cap=[None, 5.0],
)
def test_ragged_batch_equals_reference(
    dtype: torch.dtype, group: int, head_dim: int, block_size: int, window: int | None, cap: float | None
) -> None:
    batch = fp8_batch(q_heads=2 * group, kv_heads=2, head_dim=head_dim, block_size=block_size, dtype=dtype)
    plan = plan_attention(**batch.layout, block_size=block_size, device="cpu")
    options = {"scale": head_dim**-0.5, "window": window, "soft_cap": cap, "scales": SCALES}
    attended = paged_attention(batch.q, batch.k_cache, batch.v_cache, plan, **options)
    expected = paged_attention_reference(batch.q, batch.k_cache, batch.v_cache, **batch.layout, **options)
    assert attended.dtype == dtype
    assert_attention_close(attended, expected)


def test_both_scales_matter() -> None:
    batch = fp8_batch(q_heads=2, kv_heads=1, head_dim=16, block_size=16, dtype=torch.float32)
    plan = plan_attention(**batch.layout, block_size=16, device="cpu")
    several = [
        paged_attention(batch.q, batch.k_cache, batch.v_cache, plan, scale=0.25, scales=scales)
        for scales in (KVScales(), KVScales(keys=2.0), KVScales(values=2.0))
    ]
    assert torch.equal(several[2], 2 * several[0])
    assert not torch.allclose(several[1], several[0], rtol=1e-2)


def test_int8_codes_are_refused_by_name() -> None:
    k_cache, v_cache = torch.zeros(2, 4, 1, 8, 20, dtype=torch.int8)
    with pytest.raises(TypeError, match=r"`k_cache` has dtype torch\.int8; kernels of a GPU take torch\.float8_e4m3fn"):
        store_kv(torch.zeros(1, 1, 16), torch.zeros(1, 1, 16), k_cache, v_cache, torch.tensor([0]))
