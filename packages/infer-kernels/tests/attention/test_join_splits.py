"""Splits joined by the kernel, interpreted, against the formula in fp64."""

# ruff: noqa: N803 - compile-time arguments of kernels are upper case, as Triton writes them

import pytest
import torch
import triton
import triton.language as tl
from torch import Tensor

from infer_kernels.attention.triton import operands
from infer_kernels.attention.triton.join_splits import join_splits
from infer_proofs.kernels.pairwise import parametrize_pairwise

pytestmark = pytest.mark.usefixtures("triton_only")


@triton.jit  # type: ignore[untyped-decorator]  # Triton has no annotations
def _join_kernel(
    out_maximum: tl.tensor,
    out_total: tl.tensor,
    out_sums: tl.tensor,
    sums: tl.tensor,
    maxima: tl.tensor,
    totals: tl.tensor,
    first_item: tl.tensor,
    num_splits: tl.tensor,
    first_head: tl.tensor,
    q_heads: tl.tensor,
    GROUP: tl.constexpr,
    HEADS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    BLOCK_D: tl.constexpr,
) -> None:
    row, column = tl.arange(0, HEADS), tl.arange(0, BLOCK_D)
    maximum, total, joined = join_splits(
        operands.Partials(sums, maxima, totals), first_item, num_splits, first_head + row, q_heads, row < GROUP,
        HEADS, HEAD_DIM, BLOCK_D,
    )  # fmt: skip
    tl.store(out_maximum + row, maximum, mask=row < GROUP)
    tl.store(out_total + row, total, mask=row < GROUP)
    mask = (row < GROUP)[:, None] & (column < HEAD_DIM)[None, :]
    tl.store(out_sums + row[:, None] * HEAD_DIM + column[None, :], joined, mask=mask)


def join(
    sums: Tensor, maxima: Tensor, totals: Tensor, *, first_item: int, num_splits: int, kv_head: int, group: int
) -> tuple[Tensor, Tensor, Tensor]:
    """What the kernel makes of a sequence's splits for the heads of `kv_head`: maximum, total and sums of each head."""
    head_dim = sums.shape[2]
    out = torch.full((group,), -7.0), torch.full((group,), -7.0), torch.full((group, head_dim), -7.0)
    _join_kernel[(1,)](
        *out, sums, maxima, totals, first_item, num_splits, kv_head * group, sums.shape[1],
        GROUP=group, HEADS=triton.next_power_of_2(group),
        HEAD_DIM=head_dim, BLOCK_D=triton.next_power_of_2(head_dim),
    )  # fmt: skip
    return out


def random_splits(num_splits: int, *, q_heads: int, head_dim: int) -> tuple[Tensor, Tensor, Tensor]:
    """Sums, maxima and totals of splits whose weights differ by many orders of magnitude."""
    torch.manual_seed(num_splits)
    maxima = torch.randn(num_splits, q_heads) * 20
    return torch.randn(num_splits, q_heads, head_dim) * 30, maxima, torch.rand(num_splits, q_heads) * 255 + 1


@parametrize_pairwise(num_splits=[2, 3, 8, 9, 65, 513, 1030], group=[1, 3, 8], head_dim=[16, 80, 128])
def test_any_number_of_splits_joins_to_the_formula(num_splits: int, group: int, head_dim: int) -> None:
    sums, maxima, totals = random_splits(num_splits, q_heads=2 * group, head_dim=head_dim)
    joined = join(sums, maxima, totals, first_item=0, num_splits=num_splits, kv_head=1, group=group)
    heads = slice(group, 2 * group)
    highest = maxima[:, heads].double().amax(0)
    shares = torch.exp2(maxima[:, heads].double() - highest)
    expected = highest, (shares * totals[:, heads]).sum(0), (shares[..., None] * sums[:, heads]).sum(0)
    scale = (shares[..., None] * sums[:, heads].abs()).sum(0)
    assert torch.equal(joined[0], expected[0].float())
    torch.testing.assert_close(joined[1], expected[1].float(), rtol=1e-5, atol=0.0)
    assert ((joined[2] - expected[2]).abs() <= 1e-5 * scale).all()


@pytest.mark.parametrize("num_splits", [2, 9, 130])
def test_neither_place_nor_neighbors_change_a_bit(num_splits: int) -> None:
    # Results of other sequences and of earlier steps may hold anything (vllm-project/flash-attention#190).
    own = random_splits(num_splits, q_heads=6, head_dim=16)
    alone = join(*own, first_item=0, num_splits=num_splits, kv_head=0, group=3)
    among = [torch.full((num_splits + 40, *part.shape[1:]), float("nan")) for part in own]
    for part, kept in zip(among, own, strict=True):
        part[17 : 17 + num_splits] = kept
    later = join(*among, first_item=17, num_splits=num_splits, kv_head=0, group=3)
    assert all(torch.equal(one, other) for one, other in zip(alone, later, strict=True))


def test_a_split_far_below_the_others_adds_nothing_and_breaks_nothing() -> None:
    sums, maxima, totals = random_splits(40, q_heads=1, head_dim=16)
    maxima[5:] -= 3.0e4
    rest = join(sums, maxima, totals, first_item=0, num_splits=5, kv_head=0, group=1)
    joined = join(sums, maxima, totals, first_item=0, num_splits=40, kv_head=0, group=1)
    assert all(torch.allclose(one, other, rtol=1e-6) for one, other in zip(rest, joined, strict=True))
