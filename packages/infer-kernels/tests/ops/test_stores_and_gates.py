"""Stores into the cache, prepared keys and gates on every path: what is written, and nothing else."""

import pytest
import torch
from torch import Tensor

from infer_kernels import NormVariant, QKNorm, Rotary, gelu_tanh_and_mul, qk_norm_rope_store, silu_and_mul
from infer_kernels.checks.closeness import assert_within_roundings
from infer_kernels.reference import qk_norm_rope_store_reference
from infer_proofs.kernels.pairwise import parametrize_pairwise

pytestmark = pytest.mark.usefixtures("every_path")

DTYPES = [torch.float32, torch.float16, torch.bfloat16]
VARIANTS: list[NormVariant | None] = ["llama", "gemma", None]


def some_rotary(tokens: int, head_dim: int) -> Rotary:
    angles = torch.randn(40, head_dim // 2)
    positions = torch.randint(40, (tokens,), dtype=torch.int32)
    return Rotary(position_ids=positions, cos_sin=torch.cat((angles.cos(), angles.sin()), dim=-1))


def some_norm(head_dim: int, dtype: torch.dtype, variant: NormVariant | None = "llama") -> QKNorm | None:
    q_weight, k_weight = torch.randn(2, head_dim).to(dtype)
    return None if variant is None else QKNorm(q_weight=q_weight, k_weight=k_weight, eps=1e-6, variant=variant)


def some_caches(
    kv_heads: int, head_dim: int, *, block_size: int = 4, token_major: bool = False
) -> tuple[Tensor, Tensor]:
    caches = torch.randn(2, 60 // block_size, block_size, kv_heads, head_dim).transpose(2, 3)
    k_cache, v_cache = caches if token_major else caches.contiguous()
    return k_cache, v_cache


def some_slots(tokens: int) -> Tensor:
    slots = torch.randperm(60)[:tokens].int()
    slots[tokens // 2 : tokens // 2 + 1] = -1
    return slots


@parametrize_pairwise(
    block_size=[1, 5, 20],
    heads=[(1, 16), (3, 48), (8, 256)],
    token_major=[False, True],
    skipped=[[], [2, 6], [*range(7)]],
)
def test_slots_are_written_and_nothing_else(
    block_size: int, heads: tuple[int, int], skipped: list[int], *, token_major: bool
) -> None:
    kv_heads, head_dim = heads
    qkv, slots, rotary = torch.randn(7, 3 + 2 * kv_heads, head_dim), torch.randperm(60)[:7], some_rotary(7, head_dim)
    slots[skipped] = -1
    k_cache, v_cache = some_caches(kv_heads, head_dim, block_size=block_size, token_major=token_major)
    expected = qk_norm_rope_store_reference(qkv, k_cache, v_cache, slots)
    prepared = qk_norm_rope_store_reference(qkv, k_cache, v_cache, slots, rotary=rotary)
    qk_norm_rope_store(qkv, k_cache, v_cache, slots.int())
    assert torch.equal(k_cache, expected[1])
    assert torch.equal(v_cache, expected[2])
    qk_norm_rope_store(qkv, k_cache, v_cache, slots, rotary=rotary)
    assert_within_roundings(k_cache, prepared[1])
    assert torch.equal(v_cache, prepared[2])


def test_one_layer_of_a_larger_storage_is_written() -> None:
    storage = torch.zeros(3, 4, 2, 3, 8).transpose(2, 3)  # [layers, blocks, kv_heads, block_size, head_dim]
    qk_norm_rope_store(torch.ones(1, 1 + 2 * 3, 8), storage[1], storage[2], torch.tensor([5]))
    assert storage[0].sum() == 0
    assert torch.equal(storage[1, 2, :, 1], torch.ones(3, 8))
    assert storage[1:].sum() == 48


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_heads_that_are_not_rotated_equal_the_reference(variant: NormVariant | None, dtype: torch.dtype) -> None:
    qkv, slots, norm = torch.randn(7, 9 + 6, 48).to(dtype), some_slots(7), some_norm(48, dtype, variant)
    k_cache, v_cache = (cache.to(dtype) for cache in some_caches(3, 48))
    expected = qk_norm_rope_store_reference(qkv, k_cache, v_cache, slots, norm=norm)
    q = qk_norm_rope_store(qkv, k_cache, v_cache, slots, norm=norm)
    for actual, wanted in zip((q, k_cache, v_cache), expected, strict=True):
        assert_within_roundings(actual, wanted, 4)


@pytest.mark.parametrize(("tokens", "q_heads", "kv_heads"), [(1, 64, 8), (33, 1, 1), (11, 3, 1), (3, 8, 8)])
@pytest.mark.parametrize("head_dim", [2, 96, 256])
def test_any_count_of_heads_and_tokens_equals_the_reference(
    tokens: int, q_heads: int, kv_heads: int, head_dim: int
) -> None:
    qkv, caches = torch.randn(tokens, q_heads + 2 * kv_heads, head_dim), some_caches(kv_heads, head_dim)
    slots, rotary, norm = some_slots(tokens), some_rotary(tokens, head_dim), some_norm(head_dim, torch.float32)
    expected = qk_norm_rope_store_reference(qkv, *caches, slots, rotary=rotary, norm=norm)
    q = qk_norm_rope_store(qkv, *caches, slots, rotary=rotary, norm=norm)
    for actual, wanted in zip((q, *caches), expected, strict=True):
        assert_within_roundings(actual, wanted)


@pytest.mark.parametrize("rotary_dim", [20, 64])
@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_kernels_of_triton_have_the_bits_of_the_reference_where_no_sum_rounds(
    variant: NormVariant | None, dtype: torch.dtype, rotary_dim: int, every_path: str
) -> None:
    qkv, slots = torch.randint(-8, 9, (5, 9 + 6, 64)).to(dtype), some_slots(5)
    k_cache, v_cache = (cache.to(dtype) for cache in some_caches(3, 64))
    rotary, norm = some_rotary(5, rotary_dim), some_norm(64, dtype, variant)
    expected = qk_norm_rope_store_reference(qkv, k_cache, v_cache, slots, rotary=rotary, norm=norm)
    q = qk_norm_rope_store(qkv, k_cache, v_cache, slots, rotary=rotary, norm=norm)
    for actual, wanted in zip((q, k_cache, v_cache), expected, strict=True):
        assert_within_roundings(actual, wanted, 0 if every_path == "triton" else 4)


def test_strided_qkv_and_out_and_sliced_indices_are_fine() -> None:
    wide, caches = torch.randn(5, 9, 40), some_caches(2, 24)
    qkv, out = wide[:, 1:8, 8:32], torch.zeros(5, 4, 64)[:, 1:, 16:40]
    slots, rotary, norm = some_slots(15)[1::3], some_rotary(15, 24), some_norm(24, torch.float32)
    rotary = Rotary(position_ids=rotary.position_ids[2::3].long(), cos_sin=rotary.cos_sin)
    before, expected = wide.clone(), qk_norm_rope_store_reference(qkv, *caches, slots, rotary=rotary, norm=norm)
    assert qk_norm_rope_store(qkv, *caches, slots, rotary=rotary, norm=norm, out=out) is out
    for actual, wanted in zip((out, *caches), expected, strict=True):
        assert_within_roundings(actual, wanted)
    assert torch.equal(wide, before)


def test_queries_with_nothing_to_prepare_are_copied_only_where_out_is_given() -> None:
    qkv, caches = torch.randn(3, 4 + 2, 16), some_caches(1, 16)
    assert qk_norm_rope_store(qkv, *caches, torch.arange(3)).data_ptr() == qkv.data_ptr()
    out = torch.empty(3, 4, 16)
    qk_norm_rope_store(qkv, *caches, torch.arange(3), out=out)
    assert torch.equal(out, qkv[:, :4])


def test_no_tokens_write_nothing() -> None:
    caches, none = some_caches(2, 16), torch.empty(0, dtype=torch.int32)
    before = [cache.clone() for cache in caches]
    norm = some_norm(16, torch.float32)
    q = qk_norm_rope_store(torch.empty(0, 7, 16), *caches, none, rotary=some_rotary(0, 16), norm=norm)
    assert q.shape == (0, 3, 16)
    assert all(map(torch.equal, caches, before))


def test_a_token_among_others_gets_the_bits_it_gets_alone() -> None:
    qkv, rotary, norm = torch.randn(33, 3 + 2, 32), some_rotary(33, 32), some_norm(32, torch.float32)
    together, alone = some_caches(1, 32), some_caches(1, 32)
    q = qk_norm_rope_store(qkv, *together, torch.arange(33), rotary=rotary, norm=norm)
    for token in (0, 7, 32):
        at = slice(token, token + 1)
        one = Rotary(position_ids=rotary.position_ids[at], cos_sin=rotary.cos_sin)
        assert torch.equal(qk_norm_rope_store(qkv[at], *alone, torch.tensor([token]), rotary=one, norm=norm), q[at])
        assert torch.equal(alone[0].transpose(1, 2).flatten(0, 1)[at], together[0].transpose(1, 2).flatten(0, 1)[at])


@pytest.mark.parametrize("dtype", DTYPES)
def test_gates_may_be_given_memory_and_no_rows(dtype: torch.dtype) -> None:
    for shape in ((0, 8), (7, 96)):
        gate_up, out = torch.randn(shape[0], 2 * shape[1]).to(dtype), torch.empty(shape, dtype=dtype)
        for op in (silu_and_mul, gelu_tanh_and_mul):
            assert op(gate_up, out=out) is out
            assert torch.equal(op(gate_up), out)
