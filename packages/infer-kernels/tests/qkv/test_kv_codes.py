"""Codes of eight bits: how far they are from the numbers; bits of attention over int8, on both paths of a CPU."""

from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from infer_kernels import KVScales, qk_norm_rope_store
from infer_kernels.checks.inputs.batches import PagedBatch, random_paged_batch
from infer_kernels.qkv.kv_codes import decode_rows, encode_rows
from infer_proofs.kernels.inputs.batch_attention import attend, part_of
from infer_proofs.kernels.pairwise import parametrize_pairwise

pytestmark = pytest.mark.usefixtures("cpu_path")

CACHE_DTYPES = [torch.int8, torch.float8_e4m3fn]
DTYPES = [torch.float32, torch.float16, torch.bfloat16]

every_cache = pytest.mark.parametrize("cache_dtype", CACHE_DTYPES)


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


def in_int8(batch: PagedBatch) -> PagedBatch:
    k_cache, v_cache = (encode_rows(cache, torch.int8, 1.0) for cache in (batch.k_cache, batch.v_cache))
    return replace(batch, k_cache=k_cache, v_cache=v_cache)


@given(cut=st.integers(1, 69), seed=st.integers(0, 100))
def test_int8_bits_do_not_depend_on_chunks_or_company(cut: int, seed: int) -> None:
    lengths = [(70, 70), (1, 90)]
    batch = in_int8(random_paged_batch(lengths, q_heads=4, kv_heads=2, head_dim=16, block_size=8, seed=seed))
    parts = part_of(batch, 0, 0, cut), part_of(batch, 0, cut), part_of(batch, 1)
    alone = [attend(part, batch_invariant=True) for part in parts]
    assert torch.equal(torch.cat(alone), attend(batch, batch_invariant=True))


@parametrize_pairwise(dtype=DTYPES, group=[1, 2, 3, 4, 5], head_dim=[16, 48, 80, 128])
def test_a_decode_over_int8_has_the_bits_of_its_row_in_a_prompt(dtype: torch.dtype, group: int, head_dim: int) -> None:
    batch = in_int8(
        random_paged_batch([(70, 70)], q_heads=2 * group, kv_heads=2, head_dim=head_dim, block_size=8, dtype=dtype)
    )
    whole = attend(batch, batch_invariant=True)
    for row in (0, 63, 64, 69):
        assert torch.equal(attend(part_of(batch, 0, row, row + 1), batch_invariant=True)[0], whole[row])


def test_rows_of_int8_without_room_for_a_scale_are_refused() -> None:
    cache, other = (torch.zeros(2, 1, 4, width, dtype=torch.int8) for width in (4, 16))
    qkv = torch.zeros(1, 3, 16)
    with pytest.raises(ValueError, match=r"`k_cache` has rows of 4 bytes; pass head_dim \+ 4, a multiple of 4"):
        qk_norm_rope_store(qkv, cache, cache, torch.tensor([0]))
    with pytest.raises(ValueError, match=r"`qkv` has shape \[1, 3, 16\]; pass \[1, 3, 12\]"):
        qk_norm_rope_store(qkv, other, other, torch.tensor([0]))
