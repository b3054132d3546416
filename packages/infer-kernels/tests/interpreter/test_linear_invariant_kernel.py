"""The dense layer whose rows have the same bits in every batch, interpreted."""

import pytest
import torch

from infer_kernels.checks.closeness import assert_within_roundings
from infer_kernels.linear.linear_invariant import linear_invariant, linear_invariant_reference
from infer_proofs.kernels.pairwise import parametrize_pairwise

DTYPES = [torch.float32, torch.float16, torch.bfloat16]


@parametrize_pairwise(
    dtype=DTYPES,
    features=[(1, 1), (33, 130), (80, 37), (144, 129)],
    rows=[0, 1, 7, 65],
    with_bias=[True, False],
)
def test_layer_equals_reference(rows: int, features: tuple[int, int], dtype: torch.dtype, *, with_bias: bool) -> None:
    in_features, out_features = features
    x = torch.randn(rows, in_features).to(dtype)
    weight = (torch.randn(out_features, in_features) / in_features**0.5).to(dtype)
    bias = torch.randn(out_features).to(dtype) if with_bias else None
    assert_within_roundings(linear_invariant(x, weight, bias), linear_invariant_reference(x, weight, bias))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("in_features", "out_features"), [(33, 37), (144, 130)])
def test_rows_of_any_slice_equal_rows_of_the_whole(in_features: int, out_features: int, dtype: torch.dtype) -> None:
    x, weight = torch.randn(70, in_features).to(dtype), torch.randn(out_features, in_features).to(dtype)
    bias = torch.randn(out_features).to(dtype)
    whole = linear_invariant(x, weight, bias)
    for start, stop in ((0, 1), (69, 70), (3, 10), (5, 69), (0, 65), (63, 65)):
        assert torch.equal(linear_invariant(x[start:stop], weight, bias), whole[start:stop])
    shuffled = torch.randperm(70)
    assert torch.equal(linear_invariant(x[shuffled], weight, bias), whole[shuffled])


@pytest.mark.parametrize("rows", [129, 600])
def test_every_tile_has_one_program(rows: int) -> None:
    # Groups of tiles of rows: less than one, one and a bit.
    x, weight = torch.randn(rows, 16), torch.randn(70, 16)
    assert_within_roundings(linear_invariant(x, weight), linear_invariant_reference(x, weight), 8)


@pytest.mark.parametrize("dtype", DTYPES)
def test_strided_rows_and_out_are_taken(dtype: torch.dtype) -> None:
    x, weight = torch.randn(5, 96).to(dtype)[:, 32:64], torch.randn(24, 64).to(dtype)[:, :32]
    out = torch.full((5, 40), 3.0, dtype=dtype)
    expected = linear_invariant(x.contiguous(), weight.contiguous())
    linear_invariant(x, weight, out=out[:, 8:32])
    assert torch.equal(out[:, 8:32], expected)
    assert (out[:, :8] == 3.0).all()
    assert (out[:, 32:] == 3.0).all()


def test_leading_dimensions_are_kept() -> None:
    x, weight = torch.randn(2, 3, 16), torch.randn(5, 16)
    expected = linear_invariant(x.view(6, 16), weight).view(2, 3, 5)
    out = torch.empty(2, 3, 5)
    assert torch.equal(linear_invariant(x, weight), expected)
    assert linear_invariant(x, weight, out=out) is out
    assert torch.equal(out, expected)
    assert torch.equal(linear_invariant(x[0, 0], weight), expected[0, 0])
