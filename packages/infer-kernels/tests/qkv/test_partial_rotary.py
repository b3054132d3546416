"""Rotation of the first elements of each head alone: which, gradients, machine code, and wrong arguments."""

from math import cos, sin

import pytest
import torch
from torch import Tensor

from infer_kernels import NormVariant, QKNorm, Rotary, apply_rope, qk_norm_rope_store, rms_norm
from infer_kernels.checks.closeness import assert_within_roundings
from infer_kernels.reference import apply_rope_reference
from infer_proofs.kernels.compiled.ahead_of_time import LaunchLog, compile_only
from infer_proofs.kernels.pairwise import parametrize_each_value

DTYPES = [torch.float32, torch.float16, torch.bfloat16]
VARIANTS: list[NormVariant | None] = ["llama", "gemma", None]
WIDTHS = [(128, 96), (64, 32), (64, 20), (80, 20), (46, 34), (16, 2), (4, 2), (6, 6), (1024, 1022)]
"""(head_dim, rotary_dim)."""


def some_angles(rotary_dim: int) -> Tensor:
    """Angles of 40 positions, [40, rotary_dim / 2]."""
    return torch.randn(40, rotary_dim // 2)


def some_rotary(tokens: int, rotary_dim: int) -> Rotary:
    angles = some_angles(rotary_dim)
    positions = torch.randint(40, (tokens,), dtype=torch.int32)
    return Rotary(position_ids=positions, cos_sin=torch.cat((angles.cos(), angles.sin()), dim=-1))


def some_norm(head_dim: int, dtype: torch.dtype, variant: NormVariant | None) -> QKNorm | None:
    q_weight, k_weight = torch.randn(2, head_dim).to(dtype)
    return None if variant is None else QKNorm(q_weight=q_weight, k_weight=k_weight, eps=1e-6, variant=variant)


def some_caches(kv_heads: int, head_dim: int, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    k_cache, v_cache = torch.randn(2, 30, kv_heads, 4, head_dim).to(dtype)
    return k_cache, v_cache


@pytest.mark.parametrize(("head_dim", "rotary_dim"), [(8, 6), (6, 2), (8, 8)])
def test_elements_half_a_rotary_width_apart_are_rotated_into_each_other(head_dim: int, rotary_dim: int) -> None:
    angles, half = some_angles(rotary_dim), rotary_dim // 2
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


@pytest.mark.usefixtures("cpu_path")
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


@pytest.mark.usefixtures("cpu_path")
@pytest.mark.parametrize("dtype", DTYPES)
def test_a_table_of_whole_heads_rotates_like_one_whose_last_angles_are_zero(dtype: torch.dtype) -> None:
    # head_dim 8: the pairs (0, 4), (1, 5) are turned and (2, 6), (3, 7) are not; rotary_dim 4 pairs (0, 2), (1, 3).
    x, angles = torch.randn(3, 1 + 2, 8).to(dtype), some_angles(4)
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


def compiled(
    capability: int, head_dim: int, rotary_dim: int, *, variant: NormVariant | None, tokens: int = 5, first: int = 0
) -> LaunchLog:
    """What rotating alone, and preparing heads, compile and launch for positions from `first` on in their buffer."""
    qkv, caches = torch.empty(tokens, 9 + 6, head_dim, dtype=torch.bfloat16), some_caches(3, head_dim, torch.bfloat16)
    staged = torch.zeros(2, 64, dtype=torch.int32)[:, first : first + tokens]
    rotary = Rotary(position_ids=staged[0], cos_sin=torch.empty(9, rotary_dim))
    norm = some_norm(head_dim, torch.bfloat16, variant)
    with compile_only(capability) as log:
        apply_rope(qkv[:, :9], qkv[:, 9:12], rotary.position_ids, rotary.cos_sin)
        qk_norm_rope_store(qkv, *caches, staged[1], rotary=rotary, norm=norm)
    return log


@parametrize_each_value(
    capability=[80, 90, 120], variant=VARIANTS, widths=[(128, 96), (64, 32), (64, 16), (64, 20), (4, 2)]
)
def test_one_launch_that_spills_nothing(capability: int, variant: NormVariant | None, widths: tuple[int, int]) -> None:
    log = compiled(capability, *widths, variant=variant)
    assert [launch.name for launch in log.launches] == ["_rope_kernel", "qk_norm_rope_store_kernel"]
    assert {kernel.spilled_bytes for kernel in log.compiled} <= {0}  # what was compiled before is not again
    if widths[1] % 16 == 0:
        # Halves of what is rotated, and of what is not, move 16 bytes at a time.
        assert all("ld.global.v4" in kernel.ptx and "st.global.v4" in kernel.ptx for kernel in log.compiled)


def test_nothing_is_compiled_again_for_other_tokens() -> None:
    runs = ((7, 0), (8, 0), (16, 4), (1, 0), (1, 3), (33, 1))
    counts = [len(compiled(90, 64, 48, variant="llama", tokens=tokens, first=first).compiled) for tokens, first in runs]
    assert counts == [2, 0, 0, 0, 0, 0]


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
