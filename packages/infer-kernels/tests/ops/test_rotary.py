"""Rotary embedding on every path: of whole heads and of their first elements."""

import pytest
import torch

from infer_kernels import NormVariant, QKNorm, Rotary, apply_rope, qk_norm_rope_store
from infer_kernels.checks.closeness import assert_within_roundings
from infer_kernels.reference import apply_rope_reference, qk_norm_rope_store_reference
from infer_proofs.kernels.pairwise import parametrize_pairwise

pytestmark = pytest.mark.usefixtures("every_path")

DTYPES = [torch.float32, torch.float16, torch.bfloat16]
VARIANTS: list[NormVariant | None] = ["llama", "gemma", None]
WIDTHS = [
    (1024, 1022),
    (128, 96),
    (64, 20),
    (80, 20),
    (46, 34),
    (16, 2),
    (4, 2),
    (6, 6),
    (2, 2),
    (48, 48),
    (256, 64),
    (256, 256),
]
"""(head_dim, rotary_dim)."""


def some_rotary(tokens: int, rotary_dim: int) -> Rotary:
    angles = torch.randn(40, rotary_dim // 2)
    positions = torch.randint(40, (tokens,), dtype=torch.int32)
    return Rotary(position_ids=positions, cos_sin=torch.cat((angles.cos(), angles.sin()), dim=-1))


@parametrize_pairwise(widths=WIDTHS, heads=[(1, 1), (3, 1), (9, 3)], dtype=DTYPES, tokens=[0, 1, 7])
def test_heads_inside_packed_qkv_are_rotated_in_place_or_apart(
    widths: tuple[int, int], heads: tuple[int, int], dtype: torch.dtype, tokens: int
) -> None:
    (head_dim, rotary_dim), (q_heads, kv_heads) = widths, heads
    qkv, rotary = torch.randn(tokens, q_heads + 2 * kv_heads, head_dim).to(dtype), some_rotary(tokens, rotary_dim)
    q, k, _ = torch.split(qkv, [q_heads, kv_heads, kv_heads], dim=1)
    given = (rotary.position_ids, rotary.cos_sin)
    expected, before = apply_rope_reference(q, k, *given), qkv.clone()
    rotated = apply_rope(q, k, *given)
    assert torch.equal(qkv, before)
    in_place = apply_rope(q, k, *given, q_out=q, k_out=k)
    assert in_place[0] is q
    for actual, also, wanted in zip(rotated, in_place, expected, strict=True):
        assert_within_roundings(actual, wanted)
        assert torch.equal(actual, also)
    assert torch.equal(qkv[:, q_heads + kv_heads :], before[:, q_heads + kv_heads :])


@parametrize_pairwise(widths=WIDTHS, heads=[(1, 1), (9, 3)], dtype=DTYPES, variant=VARIANTS, tokens=[1, 7])
def test_prepared_heads_equal_the_reference(
    widths: tuple[int, int], heads: tuple[int, int], dtype: torch.dtype, variant: NormVariant | None, tokens: int
) -> None:
    (head_dim, rotary_dim), (q_heads, kv_heads) = widths, heads
    qkv = torch.randn(tokens, q_heads + 2 * kv_heads, head_dim).to(dtype)
    k_cache, v_cache = torch.randn(2, 10, kv_heads, 4, head_dim).to(dtype)
    rotary, slots = some_rotary(tokens, rotary_dim), torch.randperm(40)[:tokens]
    slots[1::3] = -1
    q_weight, k_weight = torch.randn(2, head_dim).to(dtype)
    norm = None if variant is None else QKNorm(q_weight=q_weight, k_weight=k_weight, eps=1e-6, variant=variant)
    before, expected = qkv.clone(), qk_norm_rope_store_reference(qkv, k_cache, v_cache, slots, rotary=rotary, norm=norm)
    q = qk_norm_rope_store(qkv, k_cache, v_cache, slots, rotary=rotary, norm=norm)
    for actual, wanted in zip((q, k_cache, v_cache), expected, strict=True):
        # A normalized element near 2 is off by a rounding of its own before the rotation rounds again.
        assert_within_roundings(actual, wanted, 4)
    assert torch.equal(v_cache, expected[2])
    assert torch.equal(qkv, before)


def test_what_is_not_rotated_passes_bit_for_bit_and_touches_nothing_else() -> None:
    qkv, rotary, caches = torch.randn(4, 1 + 2, 16), some_rotary(4, 10), torch.randn(2, 10, 1, 4, 16)
    # No infinity: the interpreter multiplies lanes that are masked, and numpy warns.
    odd = torch.tensor([float("nan"), 0.0, -0.0, 1.0, 1e-45, -1e-45])
    clean = qk_norm_rope_store(qkv, caches[0], caches[1], torch.arange(4), rotary=rotary)
    qkv[..., 10:] = odd
    for q in (
        qk_norm_rope_store(qkv, caches[0], caches[1], torch.arange(4), rotary=rotary),
        apply_rope(qkv[:, :1], qkv[:, 1:2], rotary.position_ids, rotary.cos_sin)[0],
    ):
        assert torch.equal(q[..., 10:].view(torch.int32), odd.view(torch.int32).expand(4, 1, 6))
        assert_within_roundings(q[..., :10], clean[..., :10])


def test_equal_distances_keep_their_angle() -> None:
    angles = torch.arange(50)[:, None] * 10000.0 ** (-torch.arange(8) / 8)
    cos_sin = torch.cat((angles.cos(), angles.sin()), dim=-1)
    q, k = torch.randn(2, 1, 1, 16).expand(2, 40, 1, 16)
    rotated_q, rotated_k = apply_rope(q, k, torch.arange(40), cos_sin)
    products = (rotated_q[9:, 0] * rotated_k[:-9, 0]).sum(-1)
    torch.testing.assert_close(products, products[:1].expand(31))
