"""Caches of eight bits on every path: what is stored, and attention over it. A GPU has fp8, a CPU int8, too."""

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from infer_kernels import KVScales, KVSlots, qk_norm_rope_store, row_width
from infer_kernels.checks.closeness import assert_attention_close
from infer_kernels.checks.inputs.batches import PagedBatch, random_paged_batch
from infer_kernels.qkv.kv_codes import encode_rows
from infer_kernels.reference import qk_norm_rope_store_reference
from infer_proofs.kernels.inputs.batch_attention import attend, attend_by_reference
from infer_proofs.kernels.pairwise import parametrize_pairwise
from infer_proofs.kernels.paths import DTYPES, INTERPRETED

pytestmark = pytest.mark.usefixtures("every_path")

FP8 = torch.float8_e4m3fn
CACHE_DTYPES = [FP8] if INTERPRETED else [torch.int8, FP8]
SCALES = KVScales(keys=0.37, values=1.7)
RAGGED = [(1, 37), (7, 7), (0, 5), (1, 0), (23, 61), (1, 1), (1, 64), (1, 600)]


def caches_of(
    cache_dtype: torch.dtype, *, kv_heads: int = 2, head_dim: int = 16, block_size: int = 5
) -> tuple[Tensor, Tensor]:
    shape = (40 // block_size, kv_heads, block_size, row_width(head_dim, cache_dtype))
    k_cache, v_cache = torch.full((2, *shape), 77, dtype=torch.uint8).view(cache_dtype)
    return k_cache, v_cache


def assert_equal_bits(caches: tuple[Tensor, ...], expected: tuple[Tensor, ...]) -> None:
    for cache, wanted in zip(caches, expected, strict=True):
        assert torch.equal(codes_of(cache), codes_of(wanted))


def codes_of(cache: Tensor) -> Tensor:
    """The bytes of a cache; of fp8, NaN has one sign."""
    codes = cache.view(torch.uint8)
    return torch.where(codes == 0xFF, 0x7F, codes) if cache.dtype == FP8 else codes


def coded(batch: PagedBatch, cache_dtype: torch.dtype, scales: KVScales = SCALES) -> PagedBatch:
    k_cache = encode_rows(batch.k_cache, cache_dtype, scales.keys)
    return replace(batch, k_cache=k_cache, v_cache=encode_rows(batch.v_cache, cache_dtype, scales.values))


@parametrize_pairwise(
    cache_dtype=CACHE_DTYPES, dtype=DTYPES, head_dim=[4, 16, 36, 48, 80, 128], block_size=[1, 5, 8], tokens=[1, 7]
)
def test_stored_rows_are_those_of_the_reference_and_nothing_else_changes(
    cache_dtype: torch.dtype, dtype: torch.dtype, head_dim: int, block_size: int, tokens: int
) -> None:
    qkv = (torch.randn(tokens, 1 + 2 * 3, head_dim) * 300).to(dtype)
    if cache_dtype == FP8:
        qkv[0, 1, :3] = torch.tensor([torch.nan, torch.inf, -torch.inf])
    slots = torch.tensor([3, -1, 39, 0, 17, 4, 11], dtype=torch.int32)[:tokens]
    for given in (slots, KVSlots(slots, block_size=block_size)):
        caches = caches_of(cache_dtype, kv_heads=3, head_dim=head_dim, block_size=block_size)
        expected = qk_norm_rope_store_reference(qkv, *caches, slots, scales=SCALES)
        qk_norm_rope_store(qkv, *caches, given, scales=SCALES)
        assert_equal_bits(caches, expected[1:])


@parametrize_pairwise(
    cache_dtype=CACHE_DTYPES, dtype=DTYPES, head_dim=[16, 20, 36, 128], tokens=[1, 2, 31], block_size=[1, 5]
)
def test_prepared_rows_are_those_of_the_reference_and_nothing_else_changes(
    cache_dtype: torch.dtype, dtype: torch.dtype, head_dim: int, tokens: int, block_size: int
) -> None:
    qkv, slots = torch.randn(tokens, 3 + 4, head_dim).to(dtype), torch.randperm(40)[:tokens].int()
    slots[20:] = -1
    caches = caches_of(cache_dtype, head_dim=head_dim, block_size=block_size)
    expected = qk_norm_rope_store_reference(qkv, *caches, slots, scales=SCALES)
    q = qk_norm_rope_store(qkv, *caches, slots, scales=SCALES)
    assert torch.equal(q, expected[0])
    assert_equal_bits(caches, expected[1:])


@pytest.mark.covers("kv-cache/eight-bits")
@parametrize_pairwise(
    cache_dtype=CACHE_DTYPES,
    dtype=DTYPES,
    group=[1, 3, 8],
    head_dim=[16, 48, 64, 128, 256, 512],
    block_size=[1, 5, 64],
    window=[None, 20],
    cap=[None, 5.0],
    has_sinks=[False, True],
)
def test_ragged_batch_equals_reference(
    cache_dtype: torch.dtype,
    dtype: torch.dtype,
    group: int,
    head_dim: int,
    block_size: int,
    window: int | None,
    cap: float | None,
    *,
    has_sinks: bool,
) -> None:
    batch = random_paged_batch(
        RAGGED, q_heads=2 * group, kv_heads=2, head_dim=head_dim, block_size=block_size, dtype=dtype
    )
    batch, sinks = coded(batch, cache_dtype), torch.randn(2 * group).to(dtype) if has_sinks else None
    attended = attend(batch, window=window, soft_cap=cap, sinks=sinks, scales=SCALES)
    assert attended.dtype == dtype
    expected = attend_by_reference(batch, window=window, soft_cap=cap, sinks=sinks, scales=SCALES)
    assert_attention_close(attended, expected)


@pytest.mark.parametrize("cache_dtype", CACHE_DTYPES)
def test_attention_over_codes_is_close_to_that_over_the_numbers(cache_dtype: torch.dtype) -> None:
    batch = random_paged_batch([(1, 700), (9, 90)], q_heads=4, kv_heads=2, head_dim=64, block_size=16)
    attended, exact = attend(coded(batch, cache_dtype), scales=SCALES), attend(batch)
    bound = 0.01 if cache_dtype == torch.int8 else 0.05
    assert (attended - exact).square().mean().sqrt() < bound * exact.square().mean().sqrt()


def test_both_scales_of_an_fp8_cache_matter() -> None:
    batch = coded(random_paged_batch(RAGGED, q_heads=2, kv_heads=1, head_dim=16, block_size=16), FP8)
    plain, of_keys, of_values = (
        attend(batch, scales=scales) for scales in (KVScales(), KVScales(keys=2.0), KVScales(values=2.0))
    )
    assert torch.equal(of_values, 2 * plain)
    assert not torch.allclose(of_keys, plain, rtol=1e-2)
