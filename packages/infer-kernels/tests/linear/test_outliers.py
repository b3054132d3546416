"""Inputs that are many times as large as the others of their row, and what is left of the others: C++ products."""

from dataclasses import replace
from itertools import product

import pytest
import torch
from torch import Tensor

from infer_kernels import QuantizedWeight, fused_moe, linear, prepack, prepack_experts
from infer_kernels.checks.inputs.quantized_weights import random_quantized
from infer_kernels.quantization import Encoding
from infer_kernels.quantization.quantized_rows import most_outliers, quantize_rows_reference
from infer_proofs.kernels.cpu_kernels import needs_cpu_kernels

pytestmark = needs_cpu_kernels
ENCODINGS: tuple[Encoding, ...] = ("int8", "int4", "e2m1")


def with_outliers(rows: int, in_features: int, *, channels: int, factor: float, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Normal inputs [rows, in_features], of which some channels are `factor` times as large; and which these are."""
    torch.manual_seed(seed)
    x, is_large = torch.randn(rows, in_features), torch.zeros(in_features, dtype=torch.bool)
    is_large[torch.randperm(in_features)[:channels]] = True
    return torch.where(is_large, x * factor, x), is_large


def rounding_error(x: Tensor, is_large: Tensor, weight: QuantizedWeight) -> float:
    """The error of x @ weight.T relative to what the channels contribute that are not large."""
    plain = weight.dequantize().double()
    exact, others = x.double() @ plain.T, x.double().masked_fill(is_large, 0.0) @ plain.T
    return float((linear(x, prepack(weight)).double() - exact).norm() / others.norm())


@pytest.mark.parametrize("rows", [1, 64])
@pytest.mark.parametrize(
    ("channels", "factor"), [(0, 1), (4, 30), (4, 100), (1, 1000), (8, 30), (8, 100), (8, 1000), (1, 5000), (8, 5000)]
)
@pytest.mark.parametrize("in_features", [64, 576, 1536, 4096])
def test_large_channels_leave_the_others_their_bits(in_features: int, channels: int, factor: float, rows: int) -> None:
    weight = random_quantized(256, in_features, encoding="int8")
    x, is_large = with_outliers(rows, in_features, channels=channels, factor=factor)
    assert rounding_error(x, is_large, weight) <= 0.025


@pytest.mark.parametrize("encoding", ENCODINGS)
def test_outliers_may_move_from_row_to_row(encoding: Encoding) -> None:
    torch.manual_seed(0)
    weight, x = random_quantized(256, 4096, encoding=encoding, group_size=128), torch.randn(64, 4096)
    is_large = torch.zeros_like(x, dtype=torch.bool).scatter_(1, torch.rand(64, 4096).topk(8).indices, value=True)
    x = torch.where(is_large, x * 300, x)
    assert rounding_error(x, is_large, weight) <= 0.015


def test_a_first_token_with_massive_activations_leaves_the_other_rows_alone() -> None:
    """As attention sinks have them: two channels of the first token are 5,000, and of no other."""
    torch.manual_seed(0)
    weight, x = prepack(random_quantized(96, 576, encoding="int8")), torch.randn(40, 576)
    plain = linear(x, weight)
    x[0, 3], x[0, 411] = 5000.0, -4321.0
    assert torch.equal(linear(x, weight)[1:], plain[1:])


def test_rows_without_outliers_are_scaled_by_their_largest_number() -> None:
    x = torch.rand(50, 1024) - 0.5
    codes, scales = quantize_rows_reference(x)
    assert codes.abs().amax(dim=-1).eq(127).all()
    assert torch.equal(scales, x.abs().amax(dim=-1, keepdim=True) / 127)


def test_where_more_are_large_than_an_outlier_list_takes_the_row_has_one_scale() -> None:
    x = torch.full((1, 512), 0.1)
    for count in (most_outliers(512), most_outliers(512) + 1):
        x[0, :count] = 100.0
        codes, _ = quantize_rows_reference(x)
        assert codes[0, -1].item() == (127 if count <= most_outliers(512) else 0)


def test_of_more_large_inputs_than_an_outlier_list_takes_the_largest_are_outliers() -> None:
    x = torch.full((1, 512), 0.1)
    x[0, :40] = 0.7  # over 4 times the mean, and more than a list takes
    x[0, :8] = 50.0
    codes, scales = quantize_rows_reference(x)
    torch.testing.assert_close(scales, torch.tensor([[0.7 / 127]]))
    assert codes[0, 8:40].eq(127).all()
    assert codes[0, :8].gt(9000).all()
    weight = random_quantized(96, 512, encoding="int8")
    torch.testing.assert_close(linear(x, prepack(weight)), x @ weight.dequantize().T, rtol=1e-3, atol=1e-2)


@pytest.mark.parametrize("sign", [1, -1])
@pytest.mark.parametrize("encoding", ENCODINGS)
def test_no_sum_of_the_largest_codes_overflows(encoding: Encoding, sign: int) -> None:
    weight = random_quantized(64, 512, encoding=encoding, group_size=256)
    weight.values.fill_(127 if encoding == "int8" else 0x77 if encoding == "e2m1" else 0xFF)
    x = torch.full((5, 512), float(sign))
    torch.testing.assert_close(linear(x, prepack(weight)), x @ weight.dequantize().T, rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("group_size", [None, 8, 16, 24, 32, 48, 64, 128])
@pytest.mark.parametrize("encoding", ENCODINGS)
def test_bits_are_those_of_the_formula_on_every_instruction_set(encoding: Encoding, group_size: int | None) -> None:
    """Rows without, with few and with many outliers, some negative, some of three digits, in each other's company."""
    for has_zeros, in_features in product((False, True), (712, 720)):
        if has_zeros and encoding == "e2m1":
            continue
        weight = random_quantized(70, in_features, encoding=encoding, group_size=group_size, has_zeros=has_zeros)
        x = torch.randn(67, in_features)
        for row in range(0, 67, 2):
            x[row, torch.randperm(in_features)[: row % 13]] *= 10.0 ** (row % 5)
        x[64] = torch.eye(in_features)[5] * -3.0
        bias = torch.randn(70)
        expected = step_by_step(x, weight, bias)
        for rows in (1, 2, 5, 12, 17, 67):
            assert torch.equal(linear(x[-rows:], prepack(weight), bias), expected[-rows:]), rows


def digits_of(codes: Tensor) -> list[Tensor]:
    """The parts of codes: digit 0, 256 times digit 1, and 65,536 times digit 2."""
    parts, rest = [], codes.to(torch.int64)
    for factor in (1, 256):
        lowest = ((rest // factor + 128).remainder(256) - 128) * factor
        parts.append(lowest)
        rest = rest - lowest
    return [*parts, rest]


def step_by_step(x: Tensor, weight: QuantizedWeight, bias: Tensor) -> Tensor:
    """Every rounding of the C++ products, one after another: [rows, out_features] fp32."""
    codes, x_scales = quantize_rows_reference(x)
    digits = digits_of(codes)
    doubled = 2 if weight.encoding == "e2m1" else 1  # whole numbers
    numbers = (replace(weight, scales=torch.ones_like(weight.scales)).dequantize() * doubled).to(torch.int64)
    total = torch.zeros(len(x), weight.out_features)
    size, in_features = weight.group_size, weight.in_features
    pieces = [(digits[0], slice(first, first + size)) for first in range(0, in_features, size)]
    pieces += [(each, slice(first, first + 4)) for first in range(0, in_features, 4) for each in digits[1:]]
    for part, columns in pieces:
        product = part[:, columns] @ numbers[:, columns].T
        assert product.abs().max() < 2**31
        scaled = product.float().double() * (weight.scales[:, columns.start // weight.group_size] / doubled)
        total = (total + scaled).float()  # a product and a sum, rounded once
    return total * x_scales + bias


@pytest.mark.parametrize("wrong", [torch.nan, torch.inf])
def test_a_row_of_outliers_that_is_no_number_stays_none(wrong: float) -> None:
    x, _ = with_outliers(3, 256, channels=4, factor=500)
    x[1, 9] = wrong
    out = linear(x, prepack(random_quantized(40, 256, encoding="int8")))
    assert out[1].isnan().all()
    assert out[[0, 2]].isfinite().all()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_the_largest_numbers_of_a_dtype_are_multiplied(dtype: torch.dtype) -> None:
    x = torch.randn(20, 640).to(dtype)
    x[:, 17] = torch.finfo(dtype).max
    x[3] = 0
    x[4, 17] = 0
    out = linear(x.float(), prepack(random_quantized(40, 640, encoding="int4", group_size=64)))
    assert out.isfinite().all()
    assert out[3].eq(0).all()


def test_experts_see_outliers_too() -> None:
    torch.manual_seed(0)
    gate_up, down = (random_quantized(2, *shape, encoding="int8") for shape in ((192, 640), (640, 96)))
    x, _ = with_outliers(50, 640, channels=4, factor=300)
    ids, weights = torch.arange(50)[:, None] % 2, torch.ones(50, 1)
    actual = fused_moe(x, prepack_experts(gate_up), prepack_experts(down), ids, weights, activation="silu_and_mul")
    for expert in range(2):
        gates, ups = linear(x[expert::2], prepack(gate_up.item(expert))).chunk(2, dim=-1)
        products = torch.nn.functional.silu(gates) * ups
        expected = linear(products, prepack(down.item(expert)))
        torch.testing.assert_close(actual[expert::2], expected, rtol=0, atol=2e-2 * expected.abs().max().item())
