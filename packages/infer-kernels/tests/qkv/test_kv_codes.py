"""Keys and values in eight bits on a CPU: what is stored, how far it is from the numbers, and attention over it."""

from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from infer_kernels import KVScales, KVSlots, paged_attention, plan_attention, qk_norm_rope_store, row_width, store_kv
from infer_kernels.checks.closeness import assert_attention_close
from infer_kernels.checks.inputs.batches import PagedBatch, random_paged_batch
from infer_kernels.checks.pairwise import parametrize_pairwise
from infer_kernels.qkv.kv_codes import decode_rows, encode_rows
from infer_kernels.reference import paged_attention_reference, qk_norm_rope_store_reference, store_kv_reference

pytestmark = pytest.mark.usefixtures("cpu_path")

CACHE_DTYPES = [torch.int8, torch.float8_e4m3fn]
DTYPES = [torch.float32, torch.float16, torch.bfloat16]
SCALES = KVScales(keys=0.25, values=1.5)
RAGGED = [(1, 37), (7, 7), (0, 5), (1, 0), (23, 61), (1, 1), (1, 64), (1, 600)]

every_cache = pytest.mark.parametrize("cache_dtype", CACHE_DTYPES)


def caches_of(
    cache_dtype: torch.dtype, *, kv_heads: int = 2, head_dim: int = 16, block_size: int = 5
) -> tuple[Tensor, Tensor]:
    shape = (8, kv_heads, block_size, row_width(head_dim, cache_dtype))
    k_cache, v_cache = torch.full((2, *shape), 77, dtype=torch.uint8).view(cache_dtype)
    return k_cache, v_cache


def bits(cache: Tensor) -> Tensor:
    return cache.view(torch.uint8)


def coded_batch(
    cache_dtype: torch.dtype, *, dtype: torch.dtype, group: int, head_dim: int, block_size: int
) -> PagedBatch:
    batch = random_paged_batch(
        RAGGED, q_heads=2 * group, kv_heads=2, head_dim=head_dim, block_size=block_size, dtype=dtype
    )
    k_cache = encode_rows(batch.k_cache, cache_dtype, SCALES.keys)
    return replace(batch, k_cache=k_cache, v_cache=encode_rows(batch.v_cache, cache_dtype, SCALES.values))


def test_int8_rows_are_within_half_a_step_of_the_numbers() -> None:
    rows = torch.randn(100, 64) * torch.logspace(-6, 6, 100)[:, None]
    steps = rows.abs().amax(dim=1, keepdim=True) / 127
    assert ((decode_rows(encode_rows(rows, torch.int8, 1.0), 1.0) - rows).abs() <= 0.5001 * steps).all()


def test_fp8_rows_are_within_a_sixteenth_of_the_numbers() -> None:
    rows = torch.rand(100, 64) + 0.5
    decoded = decode_rows(encode_rows(rows, torch.float8_e4m3fn, 0.3), 0.3)
    assert ((decoded - rows).abs() <= rows / 16 * 1.0001).all()


def test_fp8_numbers_beyond_the_range_become_its_ends() -> None:
    decoded = decode_rows(encode_rows(torch.tensor([[1e6, -1e6, torch.inf]]), torch.float8_e4m3fn, 2.0), 2.0)
    assert decoded.tolist() == [[896.0, -896.0, 896.0]]


@every_cache
@pytest.mark.parametrize("number", [torch.nan, torch.inf])
def test_what_is_not_finite_shows(cache_dtype: torch.dtype, number: float) -> None:
    rows = torch.ones(2, 16)
    rows[0, 3] = number
    decoded = decode_rows(encode_rows(rows, cache_dtype, 1.0), 1.0)
    assert decoded[0].isfinite().all() == (cache_dtype == torch.float8_e4m3fn and number == torch.inf)
    assert (decoded[1] == 1).all()


def test_a_row_of_zeros_stays_zeros() -> None:
    for cache_dtype in CACHE_DTYPES:
        assert not encode_rows(torch.zeros(3, 16), cache_dtype, 1.0).view(torch.uint8).any()


@pytest.mark.parametrize("scale", [0.0, -1.0, float("nan"), float("inf")])
def test_a_scale_that_is_none_is_refused_by_name(scale: float) -> None:
    with pytest.raises(ValueError, match=r"`values` is .*; pass a positive, finite scale"):
        KVScales(values=scale)


@parametrize_pairwise(
    cache_dtype=CACHE_DTYPES, dtype=DTYPES, head_dim=[4, 16, 36, 128], block_size=[1, 5], tokens=[1, 7]
)
def test_stored_rows_are_those_of_the_reference_and_nothing_else_changes(
    cache_dtype: torch.dtype, dtype: torch.dtype, head_dim: int, block_size: int, tokens: int
) -> None:
    k, v = (torch.randn(2, tokens, 2, head_dim) * 20).to(dtype)
    caches = caches_of(cache_dtype, head_dim=head_dim, block_size=block_size)
    slots = torch.tensor([3, -1, 7, 0, 5, 4, 1], dtype=torch.int32)[:tokens]
    expected = store_kv_reference(k, v, *caches, slots, scales=SCALES)
    store_kv(k, v, *caches, KVSlots(slots, block_size=block_size), scales=SCALES)
    assert all(torch.equal(bits(cache), bits(wanted)) for cache, wanted in zip(caches, expected, strict=True))


@parametrize_pairwise(
    cache_dtype=CACHE_DTYPES, dtype=DTYPES, head_dim=[16, 20, 36, 128], tokens=[1, 2, 31], block_size=[1, 5]
)
def test_prepared_rows_are_those_of_the_reference_and_nothing_else_changes(
    cache_dtype: torch.dtype, dtype: torch.dtype, head_dim: int, tokens: int, block_size: int
) -> None:
    qkv = torch.randn(tokens, 3 + 4, head_dim).to(dtype)
    caches = caches_of(cache_dtype, head_dim=head_dim, block_size=block_size)
    slots = torch.arange(8 * block_size)[:tokens].int()
    slots = torch.cat([slots, torch.full((tokens - len(slots),), -1, dtype=torch.int32)])
    expected = qk_norm_rope_store_reference(qkv, *caches, slots, scales=SCALES)
    q = qk_norm_rope_store(qkv, *caches, slots, scales=SCALES)
    assert torch.equal(q, expected[0])
    assert all(torch.equal(bits(cache), bits(wanted)) for cache, wanted in zip(caches, expected[1:], strict=True))


@pytest.mark.covers("kv-cache/eight-bits")
@parametrize_pairwise(
    cache_dtype=CACHE_DTYPES,
    dtype=DTYPES,
    group=[1, 3, 8],
    head_dim=[16, 48, 64, 128, 256],
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
    batch = coded_batch(cache_dtype, dtype=dtype, group=group, head_dim=head_dim, block_size=block_size)
    plan = plan_attention(**batch.layout, block_size=block_size, device="cpu")
    sinks = torch.randn(2 * group).to(dtype) if has_sinks else None
    scale = head_dim**-0.5
    attended = paged_attention(
        batch.q,
        batch.k_cache,
        batch.v_cache,
        plan,
        scale=scale,
        window=window,
        soft_cap=cap,
        sinks=sinks,
        scales=SCALES,
    )
    expected = paged_attention_reference(
        batch.q,
        batch.k_cache,
        batch.v_cache,
        **batch.layout,
        scale=scale,
        window=window,
        soft_cap=cap,
        sinks=sinks,
        scales=SCALES,
    )
    assert attended.dtype == dtype
    assert_attention_close(attended, expected)


@every_cache
def test_attention_over_codes_is_close_to_that_over_the_numbers(cache_dtype: torch.dtype) -> None:
    batch = random_paged_batch([(1, 700), (9, 90)], q_heads=4, kv_heads=2, head_dim=64, block_size=16)
    k_cache = encode_rows(batch.k_cache, cache_dtype, SCALES.keys)
    v_cache = encode_rows(batch.v_cache, cache_dtype, SCALES.values)
    plan = plan_attention(**batch.layout, block_size=16, device="cpu")
    attended = paged_attention(batch.q, k_cache, v_cache, plan, scale=0.125, scales=SCALES)
    exact = paged_attention(batch.q, batch.k_cache, batch.v_cache, plan, scale=0.125)
    bound = 0.01 if cache_dtype == torch.int8 else 0.05
    assert (attended - exact).square().mean().sqrt() < bound * exact.square().mean().sqrt()


@given(cut=st.integers(1, 69), seed=st.integers(0, 100))
def test_int8_bits_do_not_depend_on_chunks_or_company(cut: int, seed: int) -> None:
    batch = random_paged_batch([(70, 70), (1, 90)], q_heads=4, kv_heads=2, head_dim=16, block_size=8, seed=seed)
    k_cache, v_cache = (encode_rows(cache, torch.int8, 1.0) for cache in (batch.k_cache, batch.v_cache))

    def attend(rows: slice, seq_len: int, blocks: Tensor) -> Tensor:
        count = rows.stop - rows.start
        plan = plan_attention(
            query_start=torch.tensor([0, count], dtype=torch.int32),
            seq_lens=torch.tensor([seq_len], dtype=torch.int32),
            block_table=blocks,
            block_size=8,
            device="cpu",
            batch_invariant=True,
        )
        return paged_attention(batch.q[rows], k_cache, v_cache, plan, scale=0.25)

    plan = plan_attention(**batch.layout, block_size=8, device="cpu", batch_invariant=True)
    whole = paged_attention(batch.q, k_cache, v_cache, plan, scale=0.25)
    first, second = attend(slice(0, cut), cut, batch.block_table[:1]), attend(slice(cut, 70), 70, batch.block_table[:1])
    alone = attend(slice(70, 71), 90, batch.block_table[1:])
    assert torch.equal(torch.cat([first, second, alone]), whole)


@parametrize_pairwise(dtype=DTYPES, group=[1, 2, 3, 4, 5], head_dim=[16, 48, 80, 128])
def test_a_decode_over_int8_has_the_bits_of_its_row_in_a_prompt(dtype: torch.dtype, group: int, head_dim: int) -> None:
    batch = random_paged_batch([(70, 70)], q_heads=2 * group, kv_heads=2, head_dim=head_dim, block_size=8, dtype=dtype)
    k_cache, v_cache = (encode_rows(cache, torch.int8, 1.0) for cache in (batch.k_cache, batch.v_cache))

    def attend(first: int, stop: int) -> Tensor:
        plan = plan_attention(
            query_start=torch.tensor([0, stop - first], dtype=torch.int32),
            seq_lens=torch.tensor([stop], dtype=torch.int32),
            block_table=batch.block_table,
            block_size=8,
            device="cpu",
            batch_invariant=True,
        )
        return paged_attention(batch.q[first:stop], k_cache, v_cache, plan, scale=0.25)

    whole = attend(0, 70)
    for row in (0, 63, 64, 69):
        assert torch.equal(attend(row, row + 1)[0], whole[row])


def test_rows_of_int8_without_room_for_a_scale_are_refused() -> None:
    cache, other = (torch.zeros(2, 1, 4, width, dtype=torch.int8) for width in (4, 16))
    rows = torch.zeros(1, 1, 16)
    with pytest.raises(ValueError, match=r"`k_cache` has rows of 4 bytes; pass head_dim \+ 4, a multiple of 4"):
        store_kv(rows, rows, cache, cache, torch.tensor([0]))
    with pytest.raises(ValueError, match=r"`k` has shape \[1, 1, 16\]; pass \[1, 1, 12\]"):
        store_kv(rows, rows, other, other, torch.tensor([0]))
