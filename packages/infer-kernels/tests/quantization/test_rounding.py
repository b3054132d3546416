"""How numbers become quantized weights: near them, whatever they are, and never worse than by a group's largest."""

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from infer_kernels import quantize_int4, quantize_int8
from infer_kernels.integers import cdiv
from infer_kernels.quantization import NotFiniteError, QuantizedWeight, quantize_fp8

QUANTIZERS = {
    "int8": quantize_int8,
    "int4": lambda weight: quantize_int4(weight, group_size=64),
    "fp8": quantize_fp8,
}


def draw(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def grouped(weight: Tensor, group_size: int) -> Tensor:
    in_features = weight.shape[-1]
    padded = functional.pad(weight, (0, cdiv(in_features, group_size) * group_size - in_features))
    return padded.view(*padded.shape[:-1], -1, group_size)


def by_largest(weight: Tensor, group_size: int) -> Tensor:
    """Return `weight` rounded to multiples of an eighth of each group's largest number."""
    groups = grouped(weight, group_size)
    units = groups.gather(-1, groups.abs().argmax(-1, keepdim=True)) / -8
    codes = (groups / torch.where(units == 0, 1.0, units)).round().clamp(-8, 7)
    return (codes * units).flatten(-2)[..., : weight.shape[-1]]


def weighted_errors(rounded: Tensor, weight: Tensor, group_size: int) -> Tensor:
    """Return the error of each group that the search makes small."""
    groups = grouped(weight, group_size)
    weights = groups.square() + groups.square().mean(-1, keepdim=True)
    return ((grouped(rounded, group_size) - groups).square() * weights).sum(-1)


@pytest.mark.parametrize("power", [1, 3])
@pytest.mark.parametrize(("in_features", "group_size"), [(128, 64), (256, 32), (100, 64), (7, 16), (1, 64), (97, 64)])
def test_the_search_is_never_worse_than_scaling_by_the_largest(in_features: int, group_size: int, power: int) -> None:
    weight = draw(300, in_features) ** power  # cubes have heavy tails
    found = weighted_errors(quantize_int4(weight, group_size=group_size).dequantize(), weight, group_size)
    plain = weighted_errors(by_largest(weight, group_size), weight, group_size)
    assert (found <= plain * (1 + 1e-4) + 1e-12).all()
    assert in_features < 16 or found.sum() < 0.95 * plain.sum()


def test_a_groups_largest_number_is_not_cut_off() -> None:
    weight = draw(64, 64)
    weight[:, 5] = 30.0
    kept = quantize_int4(weight, group_size=64).dequantize()
    assert ((kept[:, 5] - 30).abs() < 0.15).all()


@pytest.mark.parametrize("quantization", QUANTIZERS)
def test_constant_rows_and_zeros_are_kept(quantization: str) -> None:
    weight = torch.tensor([0.0, 0.25, -3.0, 1e30])[:, None].repeat(1, 100)
    torch.testing.assert_close(QUANTIZERS[quantization](weight).dequantize(), weight, rtol=1e-6, atol=0)


@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_groups_of_one_sign_are_near(sign: float) -> None:
    weight = sign * (10 + draw(32, 128).abs())
    assert ((quantize_int4(weight, group_size=64).dequantize() / weight - 1).abs() < 0.12).all()


@pytest.mark.parametrize("quantization", QUANTIZERS)
@pytest.mark.parametrize("size", [1e-45, 1e-43, 1e-40, 1e-30, 1e-11, 1e11, 1e38])
def test_tiny_and_huge_numbers_stay_finite_and_no_larger(quantization: str, size: float) -> None:
    """Squares of such numbers vanish or overflow; scales of the tiniest do."""
    weight = (draw(16, 128).clamp(-3, 3) / 3) * size
    kept = QUANTIZERS[quantization](weight).dequantize()
    assert kept.isfinite().all()
    assert kept.abs().max() <= 2.1 * size
    if size > 1e-37:
        assert (kept / size - weight / size).norm() < 0.15 * (weight / size).norm()


@pytest.mark.parametrize("quantization", QUANTIZERS)
def test_numbers_of_one_row_do_not_change_another(quantization: str) -> None:
    weight = draw(9, 128)
    expected = QUANTIZERS[quantization](weight).dequantize()
    weight[4] *= 1e20
    kept = QUANTIZERS[quantization](weight).dequantize()
    assert torch.equal(kept[:4], expected[:4])
    assert torch.equal(kept[5:], expected[5:])


@pytest.mark.parametrize("quantization", QUANTIZERS)
@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
def test_numbers_that_are_not_finite_are_refused(quantization: str, bad: float) -> None:
    weight = draw(8, 128)
    weight[3, 77] = bad
    with pytest.raises(NotFiniteError, match="`weight` holds numbers that are NaN or infinite"):
        QUANTIZERS[quantization](weight)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_stacks_and_parts_are_worth_the_whole(dtype: torch.dtype) -> None:
    """However a weight is read: experts at once or one by one, rows in pieces, columns of ranks from a group on."""
    weight = draw(3, 3000, 192).to(dtype)
    whole = quantize_int4(weight, group_size=64)
    assert torch.equal(quantize_int4(weight[1, 100:200], group_size=64).values, whole.values[1, 100:200])
    right: QuantizedWeight = quantize_int4(weight[..., 64:], group_size=64)
    assert torch.equal(right.dequantize(), whole.dequantize()[..., 64:])
    assert whole.scales.shape == (3, 3000, 3)
