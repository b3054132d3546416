"""Rows quantized to fp8 and their products with weights in fp8, in Triton and in PyTorch."""

import pytest
import torch
from torch import Tensor

from infer_kernels.checks.closeness import assert_within_roundings
from infer_kernels.checks.inputs.quantized_weights import random_quantized
from infer_kernels.linear.quantized.linear_fp8 import (
    linear_fp8_reference,
    linear_fp8_torch,
    linear_fp8_triton,
    quantize_rows_fp8_reference,
    quantize_rows_fp8_triton,
    takes_fp8_products,
)
from infer_kernels.quantization import QuantizedWeight
from infer_kernels.reference import linear_quantized_reference
from infer_proofs.kernels.pairwise import parametrize_each_value, parametrize_pairwise
from infer_proofs.kernels.paths import DTYPES, INTERPRETED

pytestmark = pytest.mark.usefixtures("triton_or_pytorch")
triton_only = pytest.mark.usefixtures("triton_only")


def multiply(x: Tensor, weight: QuantizedWeight, bias: Tensor | None = None, *, is_invariant: bool = False) -> Tensor:
    out = torch.full((len(x), weight.out_features), torch.nan, dtype=x.dtype)
    if INTERPRETED:
        assert linear_fp8_triton(x, weight, bias, out=out, is_invariant=is_invariant) is out
    else:
        assert linear_fp8_torch(x, weight, bias, out=out) is out
    return out


@triton_only
@parametrize_pairwise(rows=[0, 1, 13], in_features=[1, 33, 1024, 1500], dtype=DTYPES)
def test_rows_have_the_codes_and_scales_of_the_reference(rows: int, in_features: int, dtype: torch.dtype) -> None:
    x = (torch.randn(rows, in_features + 3) * torch.rand(rows, 1) * 100).to(dtype)[:, :in_features]
    codes, scales = quantize_rows_fp8_triton(x)
    expected_codes, expected_scales = quantize_rows_fp8_reference(x)
    assert torch.equal(scales, expected_scales)
    assert torch.equal(codes.view(torch.uint8), expected_codes.view(torch.uint8))


@pytest.mark.usefixtures("cpu_only")
def test_rows_in_fp8_keep_their_largest_number_and_their_sign() -> None:
    x = torch.tensor([[0.5, -3.0, 0.0], [0.0, 0.0, 0.0], [1e-20, -4e-20, 2e-20]])
    codes, scales = quantize_rows_fp8_reference(x)
    torch.testing.assert_close(codes.float() * scales[:, None], x, rtol=2**-4, atol=0)
    assert codes[0, 1] == -448.0
    assert scales[1] == 0.0
    assert not takes_fp8_products(torch.device("cpu"))


def test_rows_of_zeros_stay_zeros_and_rows_without_a_number_become_none() -> None:
    x = torch.randn(4, 40)
    x[1], x[2, 7] = 0.0, torch.nan
    y = multiply(x, random_quantized(5, 40, encoding="fp8_e4m3"))
    assert (y[1] == 0.0).all()
    assert y[2].isnan().all()
    assert y[[0, 3]].isfinite().all()


@parametrize_pairwise(
    dtype=DTYPES,
    features=[(1, 1), (33, 130), (80, 37), (384, 129), (416, 3)],
    group_size=[None, 32, 96, 128],
    rows=[0, 1, 17, 65],
    with_bias=[True, False],
    is_invariant=[True, False],
)
def test_layer_equals_reference(
    dtype: torch.dtype,
    features: tuple[int, int],
    group_size: int | None,
    rows: int,
    *,
    with_bias: bool,
    is_invariant: bool,
) -> None:
    in_features, out_features = features
    weight = random_quantized(out_features, in_features, encoding="fp8_e4m3", group_size=group_size)
    x = torch.randn(rows, in_features).to(dtype)
    bias = torch.randn(out_features).to(dtype) if with_bias else None
    actual, expected = multiply(x, weight, bias, is_invariant=is_invariant), linear_fp8_reference(x, weight, bias)
    assert_within_roundings(actual, expected)
    assert INTERPRETED or torch.equal(actual, expected)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("group_size", [None, 32])
def test_layer_in_fp8_differs_from_exact_rows_by_the_rounding_of_x(group_size: int | None, dtype: torch.dtype) -> None:
    weight = random_quantized(37, 96, encoding="fp8_e4m3", group_size=group_size)
    x, bias = torch.randn(17, 96).to(dtype), torch.randn(37).to(dtype)
    exact = linear_quantized_reference(x, weight, bias)
    error = (multiply(x, weight, bias).float() - exact.float()).square().mean().sqrt()
    assert 1e-3 < error < 0.05  # roundings of 2^-4 at most, of either sign


@triton_only
@parametrize_each_value(dtype=DTYPES, group_size=[None, 128])
def test_rows_of_any_slice_equal_rows_of_the_whole(group_size: int | None, dtype: torch.dtype) -> None:
    # So many inputs that programs would divide them where bits may depend on the number of rows.
    weight = random_quantized(37, 1056, encoding="fp8_e4m3", group_size=group_size)
    x, bias = (torch.randn(70, 1056) * torch.logspace(-2, 2, 70)[:, None]).to(dtype), torch.randn(37).to(dtype)
    whole = multiply(x, weight, bias, is_invariant=True)
    for start, stop in ((0, 1), (3, 10), (5, 69), (63, 65)):
        assert torch.equal(multiply(x[start:stop], weight, bias, is_invariant=True), whole[start:stop])
    # With a tile for each number of rows, too, a row's numbers do not depend on the other rows.
    first = multiply(x[:7], weight, bias)
    assert torch.equal(multiply(torch.cat([x[:3], 100 * x[60:64]]), weight, bias)[:3], first[:3])


@triton_only
@pytest.mark.parametrize("rows", [1, 7])
def test_inputs_may_be_divided_over_programs(rows: int) -> None:
    weight = random_quantized(5, 2000, encoding="fp8_e4m3", group_size=128)
    x, bias = torch.randn(rows, 2000).half(), torch.randn(5).half()
    assert_within_roundings(multiply(x, weight, bias), linear_fp8_reference(x, weight, bias))
