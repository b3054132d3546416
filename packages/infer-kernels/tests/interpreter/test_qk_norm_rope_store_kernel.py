"""The kernel that prepares queries and keys and writes the cache, interpreted, against its reference."""

import pytest
import torch
from torch import Tensor

from infer_kernels import NormVariant
from infer_kernels.checks.closeness import assert_within_roundings
from infer_kernels.checks.pairwise import parametrize_pairwise
from infer_kernels.qkv.qk_norm_rope_store import qk_norm_rope_store, qk_norm_rope_store_reference
from infer_kernels.qkv.transforms import QKNorm, Rotary

DTYPES = [torch.float32, torch.float16, torch.bfloat16]
VARIANTS: list[NormVariant | None] = ["llama", "gemma", None]


def some_rotary(tokens: int, head_dim: int) -> Rotary:
    angles = torch.randn(40, head_dim // 2)
    positions = torch.randint(40, (tokens,), dtype=torch.int32)
    return Rotary(position_ids=positions, cos_sin=torch.cat((angles.cos(), angles.sin()), dim=-1))


def some_norm(head_dim: int, dtype: torch.dtype, variant: NormVariant = "llama") -> QKNorm:
    q_weight, k_weight = torch.randn(2, head_dim).to(dtype)
    return QKNorm(q_weight=q_weight, k_weight=k_weight, eps=1e-6, variant=variant)


def some_caches(kv_heads: int, head_dim: int, dtype: torch.dtype, *, block_size: int = 4) -> tuple[Tensor, Tensor]:
    shape = (40 // block_size, kv_heads, block_size, head_dim)
    return torch.randn(shape).to(dtype), torch.randn(shape).to(dtype)


def some_slots(tokens: int) -> Tensor:
    slots = torch.randperm(40)[:tokens].int()
    slots[tokens // 2 : tokens // 2 + 1] = -1
    return slots


@parametrize_pairwise(rotated=[True, False], variant=VARIANTS, dtype=DTYPES)
def test_all_modes_equal_the_reference(variant: NormVariant | None, dtype: torch.dtype, *, rotated: bool) -> None:
    qkv, caches, slots = torch.randn(7, 9 + 6, 48).to(dtype), some_caches(3, 48, dtype), some_slots(7)
    rotary = some_rotary(7, 48) if rotated else None
    norm = None if variant is None else some_norm(48, dtype, variant)
    expected = qk_norm_rope_store_reference(qkv, *caches, slots, rotary=rotary, norm=norm)
    q = qk_norm_rope_store(qkv, *caches, slots, rotary=rotary, norm=norm)
    for actual, wanted in zip((q, *caches), expected, strict=True):
        # A normalized element near 2 is off by a rounding of its own before the rotation rounds again.
        assert_within_roundings(actual, wanted, 4)
    assert torch.equal(caches[1], expected[2])


@pytest.mark.parametrize(("tokens", "q_heads", "kv_heads"), [(1, 64, 8), (33, 1, 1), (11, 3, 1), (5, 9, 3), (3, 8, 8)])
@pytest.mark.parametrize("head_dim", [2, 16, 96, 128, 256])
def test_any_count_of_heads_and_tokens_equals_the_reference(
    tokens: int, q_heads: int, kv_heads: int, head_dim: int
) -> None:
    qkv = torch.randn(tokens, q_heads + 2 * kv_heads, head_dim)
    caches, slots = some_caches(kv_heads, head_dim, torch.float32), some_slots(tokens)
    rotary, norm = some_rotary(tokens, head_dim), some_norm(head_dim, torch.float32)
    expected = qk_norm_rope_store_reference(qkv, *caches, slots, rotary=rotary, norm=norm)
    q = qk_norm_rope_store(qkv, *caches, slots, rotary=rotary, norm=norm)
    for actual, wanted in zip((q, *caches), expected, strict=True):
        assert_within_roundings(actual, wanted)


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_bits_are_those_of_the_separate_ops_where_no_sum_rounds(
    variant: NormVariant | None, dtype: torch.dtype
) -> None:
    # Squares of small integers add up exactly in any order.
    qkv = torch.randint(-8, 9, (5, 9 + 6, 64)).to(dtype)
    caches, slots, rotary = some_caches(3, 64, dtype), some_slots(5), some_rotary(5, 64)
    norm = None if variant is None else some_norm(64, dtype, variant)
    expected = qk_norm_rope_store_reference(qkv, *caches, slots, rotary=rotary, norm=norm)
    q = qk_norm_rope_store(qkv, *caches, slots, rotary=rotary, norm=norm)
    assert all(torch.equal(actual, wanted) for actual, wanted in zip((q, *caches), expected, strict=True))


@pytest.mark.parametrize("block_size", [1, 5, 8])
@pytest.mark.parametrize("token_major", [False, True])
def test_slots_are_written_and_nothing_else(block_size: int, *, token_major: bool) -> None:
    qkv, slots, rotary = torch.randn(7, 3 + 4, 16), some_slots(7), some_rotary(7, 16)
    k_cache, v_cache = some_caches(2, 16, torch.float32, block_size=block_size)
    if token_major:
        k_cache, v_cache = (cache.transpose(1, 2).contiguous().transpose(1, 2) for cache in (k_cache, v_cache))
    expected = qk_norm_rope_store_reference(qkv, k_cache, v_cache, slots, rotary=rotary)
    qk_norm_rope_store(qkv, k_cache, v_cache, slots, rotary=rotary)
    assert torch.equal(k_cache, expected[1])
    assert torch.equal(v_cache, expected[2])


def test_strided_qkv_and_out_and_sliced_indices_are_fine() -> None:
    wide, caches = torch.randn(5, 9, 40), some_caches(2, 24, torch.float32)
    qkv, out = wide[:, 1:8, 8:32], torch.zeros(5, 4, 64)[:, 1:, 16:40]
    slots, rotary, norm = some_slots(15)[1::3], some_rotary(15, 24), some_norm(24, torch.float32)
    rotary = Rotary(position_ids=rotary.position_ids[2::3].long(), cos_sin=rotary.cos_sin)
    before, expected = wide.clone(), qk_norm_rope_store_reference(qkv, *caches, slots, rotary=rotary, norm=norm)
    assert qk_norm_rope_store(qkv, *caches, slots, rotary=rotary, norm=norm, out=out) is out
    for actual, wanted in zip((out, *caches), expected, strict=True):
        assert_within_roundings(actual, wanted)
    assert torch.equal(wide, before)


def test_queries_with_nothing_to_prepare_are_copied_only_where_out_is_given() -> None:
    qkv, caches = torch.randn(3, 4 + 2, 16), some_caches(1, 16, torch.float32)
    assert qk_norm_rope_store(qkv, *caches, torch.arange(3)).data_ptr() == qkv.data_ptr()
    out = torch.empty(3, 4, 16)
    qk_norm_rope_store(qkv, *caches, torch.arange(3), out=out)
    assert torch.equal(out, qkv[:, :4])


def test_no_tokens_write_nothing() -> None:
    caches = some_caches(2, 16, torch.float32)
    before = [cache.clone() for cache in caches]
    q = qk_norm_rope_store(torch.empty(0, 7, 16), *caches, torch.empty(0, dtype=torch.int32), rotary=some_rotary(0, 16))
    assert q.shape == (0, 3, 16)
    assert all(map(torch.equal, caches, before))


def test_a_token_among_others_gets_the_bits_it_gets_alone() -> None:
    qkv, rotary, norm = torch.randn(33, 3 + 2, 32), some_rotary(33, 32), some_norm(32, torch.float32)
    together, alone = some_caches(1, 32, torch.float32), some_caches(1, 32, torch.float32)
    q = qk_norm_rope_store(qkv, *together, torch.arange(33), rotary=rotary, norm=norm)
    for token in (0, 7, 32):
        at = slice(token, token + 1)
        one = Rotary(position_ids=rotary.position_ids[at], cos_sin=rotary.cos_sin)
        assert torch.equal(qk_norm_rope_store(qkv[at], *alone, torch.tensor([token]), rotary=one, norm=norm), q[at])
        assert torch.equal(alone[0].transpose(1, 2).flatten(0, 1)[at], together[0].transpose(1, 2).flatten(0, 1)[at])
