"""The norm kernels, interpreted, against their references."""

import pytest
import torch

from infer_kernels import NormVariant
from infer_kernels.checks.closeness import assert_within_roundings
from infer_kernels.checks.pairwise import parametrize_pairwise
from infer_kernels.norm.add_rms_norm import add_rms_norm_triton
from infer_kernels.norm.norm_add import norm_add_triton
from infer_kernels.norm.norm_add_norm import norm_add_norm_triton
from infer_kernels.norm.rms_norm import rms_norm_triton
from infer_kernels.reference import (
    add_rms_norm_reference,
    norm_add_norm_reference,
    norm_add_reference,
    rms_norm_reference,
)

DTYPES = [torch.float32, torch.float16, torch.bfloat16]
VARIANTS: list[NormVariant] = ["llama", "gemma"]
SHAPES = [(1, 1), (1, 16), (3, 17), (7, 96), (33, 128), (5, 576), (2, 2049)]


@parametrize_pairwise(shape=SHAPES, variant=VARIANTS, dtype=DTYPES)
def test_rms_norm_equals_reference(shape: tuple[int, int], variant: NormVariant, dtype: torch.dtype) -> None:
    x, weight = torch.randn(shape).to(dtype), torch.randn(shape[-1]).to(dtype)
    out = rms_norm_triton(x, weight, 1e-6, variant=variant, out=torch.empty_like(x))
    assert_within_roundings(out, rms_norm_reference(x, weight, 1e-6, variant=variant))


@pytest.mark.parametrize("head_dim", [16, 96])
def test_rms_norm_reads_and_writes_heads_inside_packed_qkv(head_dim: int) -> None:
    qkv = torch.randn(5, 9 * head_dim)
    heads = qkv[:, head_dim : 4 * head_dim].view(5, 3, head_dim)
    weight = torch.randn(head_dim)
    expected, others = rms_norm_reference(heads, weight, 1e-6), qkv[:, 4 * head_dim :].clone()
    rms_norm_triton(heads, weight, 1e-6, variant="llama", out=heads)
    assert_within_roundings(heads, expected)
    assert torch.equal(qkv[:, 4 * head_dim :], others)


@pytest.mark.parametrize(("q_heads", "kv_heads", "head_dim"), [(1, 1, 2), (9, 3, 20), (16, 16, 128)])
@pytest.mark.parametrize("dtype", DTYPES)
def test_rms_norm_over_all_heads_inside_packed_qkv_leaves_values_alone(
    dtype: torch.dtype, q_heads: int, kv_heads: int, head_dim: int
) -> None:
    qkv = torch.randn(5, (q_heads + 2 * kv_heads) * head_dim).to(dtype)
    q, k, v = torch.split(qkv, [q_heads * head_dim, kv_heads * head_dim, kv_heads * head_dim], dim=1)
    values = v.clone()
    for x in (q, k):
        weight = torch.randn(x.shape[1]).to(dtype)
        expected = rms_norm_reference(x, weight, 1e-6)
        rms_norm_triton(x, weight, 1e-6, variant="llama", out=x)
        assert_within_roundings(x, expected)
    assert torch.equal(v, values)


def test_rms_norm_takes_more_than_three_dimensions() -> None:
    x, weight = torch.randn(2, 3, 4, 24), torch.randn(24)
    out = rms_norm_triton(x, weight, 1e-6, variant="llama", out=torch.empty_like(x))
    assert_within_roundings(out, rms_norm_reference(x, weight, 1e-6))


@parametrize_pairwise(shape=SHAPES, variant=VARIANTS, dtype=DTYPES)
def test_add_rms_norm_in_place_equals_reference(
    shape: tuple[int, int], variant: NormVariant, dtype: torch.dtype
) -> None:
    x, residual = torch.randn(2, *shape).to(dtype)
    weight = torch.randn(shape[-1]).to(dtype)
    expected = add_rms_norm_reference(x, residual, weight, 1e-6, variant=variant)
    add_rms_norm_triton(x, residual, weight, 1e-6, variant=variant, out=x, residual_out=residual)
    assert_within_roundings(x, expected[0])
    assert torch.equal(residual, expected[1])


@parametrize_pairwise(shape=SHAPES, variant=VARIANTS, dtype=DTYPES)
def test_norm_add_norm_in_place_equals_reference(
    shape: tuple[int, int], variant: NormVariant, dtype: torch.dtype
) -> None:
    x, residual = torch.randn(2, *shape).to(dtype)
    post, following = torch.randn(2, shape[-1]).to(dtype)
    expected = norm_add_norm_reference(x, residual, post, following, 1e-6, variant=variant)
    norm_add_norm_triton(x, residual, post, following, 1e-6, variant=variant, out=x, residual_out=residual)
    # A sum that cancels shows a rounding of its terms many times over after the second norm.
    assert_within_roundings(residual, expected[1], 4)
    assert_within_roundings(x, expected[0], 16)


@parametrize_pairwise(shape=SHAPES, variant=VARIANTS, dtype=DTYPES, in_place=["x", "residual", None])
def test_norm_add_equals_reference(
    shape: tuple[int, int], variant: NormVariant, dtype: torch.dtype, in_place: str | None
) -> None:
    x, residual, fresh = torch.randn(3, *shape).to(dtype)
    weight, out = torch.randn(shape[-1]).to(dtype), {"x": x, "residual": residual, None: fresh}[in_place]
    expected = norm_add_reference(x, residual, weight, 1e-6, variant=variant)
    assert norm_add_triton(x, residual, weight, 1e-6, variant=variant, out=out) is out
    # A norm that is off by a rounding of its own is added, and the sum rounds again.
    assert_within_roundings(out, expected, 4)


def test_norm_add_reads_and_writes_strided_rows() -> None:
    x, residual, wide, weight = (
        torch.randn(5, 60)[:, 10:50],
        torch.randn(5, 43)[:, 3:],
        torch.randn(5, 71),
        torch.randn(40),
    )
    rest, expected = wide[:, 40:].clone(), norm_add_reference(x, residual, weight, 1e-6)
    norm_add_triton(x, residual, weight, 1e-6, variant="llama", out=wide[:, :40])
    assert_within_roundings(wide[:, :40], expected)
    assert torch.equal(wide[:, 40:], rest)


@pytest.mark.parametrize("dtype", DTYPES)
def test_bits_of_norm_add_are_the_references_where_no_sum_rounds(dtype: torch.dtype) -> None:
    # Squares of small integers add up exactly in any order.
    x, residual, weight = (
        torch.randint(-8, 9, (5, 64)).to(dtype),
        torch.randn(5, 64).to(dtype),
        torch.randn(64).to(dtype),
    )
    out = norm_add_triton(x, residual, weight, 1e-6, variant="llama", out=torch.empty_like(x))
    assert torch.equal(out, norm_add_reference(x, residual, weight, 1e-6))


def test_norms_of_no_tokens_launch_nothing() -> None:
    x, weight = torch.empty(0, 32), torch.ones(32)
    assert rms_norm_triton(x, weight, 1e-6, variant="llama", out=x).shape == (0, 32)
    add_rms_norm_triton(x, x, weight, 1e-6, variant="llama", out=x, residual_out=x)
    norm_add_norm_triton(x, x, weight, weight, 1e-6, variant="llama", out=x, residual_out=x)
    norm_add_triton(x, x, weight, 1e-6, variant="llama", out=x)
