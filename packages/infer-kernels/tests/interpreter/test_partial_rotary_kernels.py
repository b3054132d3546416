"""The kernels that rotate the first elements of each head alone, interpreted, against their references."""

import pytest
import torch

from infer_kernels import NormVariant, QKNorm, Rotary, apply_rope, qk_norm_rope_store
from infer_kernels.checks.closeness import assert_within_roundings
from infer_kernels.checks.pairwise import parametrize_pairwise
from infer_kernels.reference import apply_rope_reference, qk_norm_rope_store_reference

DTYPES = [torch.float32, torch.float16, torch.bfloat16]
VARIANTS: list[NormVariant | None] = ["llama", "gemma", None]
WIDTHS = [(128, 96), (64, 32), (64, 20), (80, 20), (46, 34), (16, 2), (4, 2), (256, 64), (6, 6)]
"""(head_dim, rotary_dim)."""


def some_rotary(tokens: int, rotary_dim: int) -> Rotary:
    angles = torch.randn(40, rotary_dim // 2)
    positions = torch.randint(40, (tokens,), dtype=torch.int32)
    return Rotary(position_ids=positions, cos_sin=torch.cat((angles.cos(), angles.sin()), dim=-1))


@parametrize_pairwise(widths=WIDTHS, variant=VARIANTS, dtype=DTYPES, heads=[(1, 1), (9, 3)], tokens=[1, 7])
def test_prepared_heads_equal_the_reference(
    widths: tuple[int, int], variant: NormVariant | None, dtype: torch.dtype, heads: tuple[int, int], tokens: int
) -> None:
    (head_dim, rotary_dim), (q_heads, kv_heads) = widths, heads
    qkv = torch.randn(tokens, q_heads + 2 * kv_heads, head_dim).to(dtype)
    k_cache, v_cache = torch.randn(2, 10, kv_heads, 4, head_dim).to(dtype)
    rotary, slots = some_rotary(tokens, rotary_dim), torch.randperm(40)[:tokens].int()
    slots[1::5] = -1
    weights = torch.randn(2, head_dim).to(dtype)
    norm = None
    if variant is not None:
        norm = QKNorm(q_weight=weights[0], k_weight=weights[1], eps=1e-6, variant=variant)
    expected = qk_norm_rope_store_reference(qkv, k_cache, v_cache, slots, rotary=rotary, norm=norm)
    q = qk_norm_rope_store(qkv, k_cache, v_cache, slots, rotary=rotary, norm=norm)
    for actual, wanted in zip((q, k_cache, v_cache), expected, strict=True):
        # A normalized element near 2 is off by a rounding of its own before the rotation rounds again.
        assert_within_roundings(actual, wanted, 4)
    assert torch.equal(v_cache, expected[2])


@parametrize_pairwise(widths=WIDTHS, dtype=DTYPES, heads=[(1, 1), (9, 3)])
def test_rope_on_packed_qkv_in_place_equals_reference(
    widths: tuple[int, int], dtype: torch.dtype, heads: tuple[int, int]
) -> None:
    (head_dim, rotary_dim), (q_heads, kv_heads) = widths, heads
    qkv, rotary = torch.randn(5, q_heads + 2 * kv_heads, head_dim).to(dtype), some_rotary(5, rotary_dim)
    q, k, v = torch.split(qkv, [q_heads, kv_heads, kv_heads], dim=1)
    given, values = (rotary.position_ids, rotary.cos_sin), v.clone()
    expected = apply_rope_reference(q, k, *given)
    fresh = apply_rope(q, k, *given)
    apply_rope(q, k, *given, q_out=q, k_out=k)
    for actual, also, wanted in zip((q, k), fresh, expected, strict=True):
        assert_within_roundings(actual, wanted)
        assert torch.equal(actual, also)
    assert torch.equal(v, values)


@pytest.mark.parametrize("rotary_dim", [2, 10])
def test_what_is_not_rotated_passes_bit_for_bit_and_touches_nothing_else(rotary_dim: int) -> None:
    qkv, rotary = torch.randn(4, 1 + 2, 16), some_rotary(4, rotary_dim)
    k_cache, v_cache = torch.randn(2, 10, 1, 4, 16)
    clean = qk_norm_rope_store(qkv, k_cache, v_cache, torch.arange(4), rotary=rotary)
    odd = torch.tensor([float("nan"), 0.0, -0.0, 1.0, 1e-45, -1e-45])
    qkv[..., 10:] = odd
    for q in (
        qk_norm_rope_store(qkv, k_cache, v_cache, torch.arange(4), rotary=rotary),
        apply_rope(qkv[:, :1], qkv[:, 1:2], rotary.position_ids, rotary.cos_sin)[0],
    ):
        assert torch.equal(q[..., 10:].view(torch.int32), odd.view(torch.int32).expand(4, 1, 6))
        assert torch.equal(q[..., :10], clean[..., :10])


def test_bits_of_a_partial_rotation_are_the_references_where_no_sum_rounds() -> None:
    qkv, rotary = torch.randint(-8, 9, (5, 9 + 6, 64)).half(), some_rotary(5, 20)
    k_cache, v_cache = torch.randn(2, 10, 3, 4, 64).half()
    weight = torch.randn(64).half()
    norm = QKNorm(q_weight=weight, k_weight=weight, eps=1e-6, variant="llama")
    expected = qk_norm_rope_store_reference(qkv, k_cache, v_cache, torch.arange(5), rotary=rotary, norm=norm)
    q = qk_norm_rope_store(qkv, k_cache, v_cache, torch.arange(5), rotary=rotary, norm=norm)
    assert all(torch.equal(actual, wanted) for actual, wanted in zip((q, k_cache, v_cache), expected, strict=True))
