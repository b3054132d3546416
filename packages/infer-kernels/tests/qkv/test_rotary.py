"""Rotary embedding, of whole heads and of their first elements, on every path; machine code, and wrong arguments."""

from math import cos, sin

import pytest
import torch

from infer_kernels import NormVariant, Rotary, apply_rope, qk_norm_rope_store, rms_norm
from infer_kernels.checks.closeness import assert_within_roundings
from infer_kernels.reference import apply_rope_reference, qk_norm_rope_store_reference
from infer_proofs.kernels.compiled.ahead_of_time import compile_only, launch_only
from infer_proofs.kernels.inputs.heads import VARIANTS, some_caches, some_norm, some_rotary
from infer_proofs.kernels.pairwise import parametrize_each_value, parametrize_pairwise
from infer_proofs.kernels.paths import DTYPES

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
on_every_path = pytest.mark.usefixtures("every_path")


@on_every_path
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


@on_every_path
@parametrize_pairwise(widths=WIDTHS, heads=[(1, 1), (9, 3)], dtype=DTYPES, variant=VARIANTS, tokens=[1, 7])
def test_prepared_heads_equal_the_reference(
    widths: tuple[int, int], heads: tuple[int, int], dtype: torch.dtype, variant: NormVariant | None, tokens: int
) -> None:
    (head_dim, rotary_dim), (q_heads, kv_heads) = widths, heads
    qkv = torch.randn(tokens, q_heads + 2 * kv_heads, head_dim).to(dtype)
    k_cache, v_cache = torch.randn(2, 10, kv_heads, 4, head_dim).to(dtype)
    rotary, slots = some_rotary(tokens, rotary_dim), torch.randperm(40)[:tokens]
    slots[1::3] = -1
    norm = some_norm(head_dim, dtype, variant)
    before, expected = qkv.clone(), qk_norm_rope_store_reference(qkv, k_cache, v_cache, slots, rotary=rotary, norm=norm)
    q = qk_norm_rope_store(qkv, k_cache, v_cache, slots, rotary=rotary, norm=norm)
    for actual, wanted in zip((q, k_cache, v_cache), expected, strict=True):
        # A normalized element near 2 is off by a rounding of its own before the rotation rounds again.
        assert_within_roundings(actual, wanted, 4)
    assert torch.equal(v_cache, expected[2])
    assert torch.equal(qkv, before)


@on_every_path
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


@on_every_path
def test_equal_distances_keep_their_angle() -> None:
    angles = torch.arange(50)[:, None] * 10000.0 ** (-torch.arange(8) / 8)
    cos_sin = torch.cat((angles.cos(), angles.sin()), dim=-1)
    q, k = torch.randn(2, 1, 1, 16).expand(2, 40, 1, 16)
    rotated_q, rotated_k = apply_rope(q, k, torch.arange(40), cos_sin)
    products = (rotated_q[9:, 0] * rotated_k[:-9, 0]).sum(-1)
    torch.testing.assert_close(products, products[:1].expand(31))


@pytest.mark.parametrize(("head_dim", "rotary_dim"), [(8, 6), (6, 2), (8, 8)])
def test_elements_half_a_rotary_width_apart_are_rotated_into_each_other(head_dim: int, rotary_dim: int) -> None:
    angles, half = torch.randn(40, rotary_dim // 2), rotary_dim // 2
    cos_sin = torch.cat((angles.cos(), angles.sin()), dim=-1)
    x, positions = torch.randn(3, 2, head_dim), torch.tensor([7, 0, 39])
    expected = x.clone()
    for token, position in enumerate(positions.tolist()):
        for head in range(2):
            for i in range(half):
                first, second = x[token, head, i].item(), x[token, head, i + half].item()
                angle = angles[position, i].item()
                expected[token, head, i] = first * cos(angle) - second * sin(angle)
                expected[token, head, i + half] = second * cos(angle) + first * sin(angle)
    for rotate in (apply_rope, apply_rope_reference):
        for rotated in rotate(x, x, positions, cos_sin):
            torch.testing.assert_close(rotated, expected)


@on_every_path
@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_elements_past_the_rotary_width_are_normed_and_nothing_else(
    dtype: torch.dtype, variant: NormVariant | None
) -> None:
    qkv, caches, norm = torch.randn(5, 3 + 2, 64).to(dtype), some_caches(1, 64, dtype), some_norm(64, dtype, variant)
    q = qk_norm_rope_store(qkv, *caches, torch.arange(5), rotary=some_rotary(5, 20), norm=norm)
    expected = (
        qkv[:, :3] if norm is None else rms_norm(qkv[:, :3].flatten(0, 1), norm.q_weight, 1e-6, variant=norm.variant)
    )
    kept = expected.view(5, 3, 64)[..., 20:]
    if norm is None:
        assert torch.equal(q[..., 20:], kept)
    else:
        assert_within_roundings(q[..., 20:], kept)
    assert not torch.equal(q[..., :20], expected.view(5, 3, 64)[..., :20])


@on_every_path
@pytest.mark.parametrize("dtype", DTYPES)
def test_a_table_of_whole_heads_rotates_like_one_whose_last_angles_are_zero(dtype: torch.dtype) -> None:
    # head_dim 8: the pairs (0, 4), (1, 5) are turned and (2, 6), (3, 7) are not; rotary_dim 4 pairs (0, 2), (1, 3).
    x, angles = torch.randn(3, 1 + 2, 8).to(dtype), torch.randn(40, 2)
    still = torch.cat((angles, torch.zeros_like(angles)), dim=1)
    whole = Rotary(position_ids=torch.arange(3), cos_sin=torch.cat((still.cos(), still.sin()), dim=1))
    partial = Rotary(position_ids=torch.arange(3), cos_sin=torch.cat((angles.cos(), angles.sin()), dim=1))
    order = [0, 1, 4, 5, 2, 3, 6, 7]
    expected = qk_norm_rope_store(x, *some_caches(1, 8, dtype), torch.arange(3), rotary=whole)
    q = qk_norm_rope_store(x[..., order].contiguous(), *some_caches(1, 8, dtype), torch.arange(3), rotary=partial)
    assert torch.equal(q, expected[..., order])


@pytest.mark.parametrize(("head_dim", "rotary_dim"), [(8, 6), (8, 2), (64, 20)])
def test_gradients_equal_those_of_the_reference(head_dim: int, rotary_dim: int) -> None:
    rotary, weights = some_rotary(5, rotary_dim), torch.randn(5, 1, head_dim)
    leaves = [torch.randn(5, heads, head_dim, requires_grad=True) for heads in (3, 1)]
    actual, expected = (
        torch.autograd.grad(
            sum(
                ((x * weights).sum() for x in op(leaves[0], leaves[1], rotary.position_ids, rotary.cos_sin)),
                torch.zeros(()),
            ),
            leaves,
        )
        for op in (apply_rope, apply_rope_reference)
    )
    torch.testing.assert_close(actual, expected)


def launch(head_dim: int, rotary_dim: int, *, variant: NormVariant | None, tokens: int = 5, first: int = 0) -> None:
    """Rotate alone, and prepare heads, for positions from `first` on in their buffer."""
    qkv, caches = torch.empty(tokens, 9 + 6, head_dim, dtype=torch.bfloat16), some_caches(3, head_dim, torch.bfloat16)
    staged = torch.zeros(2, 64, dtype=torch.int32)[:, first : first + tokens]
    rotary = Rotary(position_ids=staged[0], cos_sin=torch.empty(9, rotary_dim))
    norm = some_norm(head_dim, torch.bfloat16, variant)
    apply_rope(qkv[:, :9], qkv[:, 9:12], rotary.position_ids, rotary.cos_sin)
    qk_norm_rope_store(qkv, *caches, staged[1], rotary=rotary, norm=norm)


@parametrize_each_value(
    capability=[80, 90, 120], variant=VARIANTS, widths=[(128, 96), (64, 32), (64, 16), (64, 20), (4, 2)]
)
def test_one_launch_that_spills_nothing(capability: int, variant: NormVariant | None, widths: tuple[int, int]) -> None:
    with compile_only(capability) as log:
        launch(*widths, variant=variant)
    assert [launch.name for launch in log.launches] == ["_rope_kernel", "qk_norm_rope_store_kernel"]
    assert {kernel.spilled_bytes for kernel in log.compiled} <= {0}  # what was compiled before is not again
    if widths[1] % 16 == 0:
        # Halves of what is rotated, and of what is not, move 16 bytes at a time.
        assert all("ld.global.v4" in kernel.ptx and "st.global.v4" in kernel.ptx for kernel in log.compiled)


def test_one_variant_serves_any_tokens() -> None:
    with launch_only(90) as log:
        for tokens, first in ((7, 0), (8, 0), (16, 4), (1, 0), (1, 3), (33, 1)):
            launch(64, 48, variant="llama", tokens=tokens, first=first)
    assert (len(log.variants), len(log.launches)) == (2, 12)


@pytest.mark.parametrize("width", [0, 15, 18, 17, 1])
def test_a_table_that_is_odd_empty_or_wider_than_a_head_is_refused(width: int) -> None:
    message = (
        rf"`cos_sin` has shape \[9, {width}\]; pass \[max_position, rotary_dim\] with an even rotary_dim of at most 16"
    )
    x, index, cos_sin = torch.zeros(3, 4, 16), torch.arange(3), torch.zeros(9, width)
    with pytest.raises(ValueError, match=message):
        apply_rope(x, x, index, cos_sin)
    with pytest.raises(ValueError, match=message):
        qk_norm_rope_store(
            x, *some_caches(1, 16, torch.float32), index, rotary=Rotary(position_ids=index, cos_sin=cos_sin)
        )
