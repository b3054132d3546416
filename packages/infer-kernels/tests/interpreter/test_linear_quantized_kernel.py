"""Dense layers with quantized weights, interpreted: every encoding, grouping and dtype against the reference."""

import pytest
import torch
from torch import Tensor

from infer_kernels.checks.closeness import assert_within_roundings
from infer_kernels.checks.inputs.quantized_weights import random_quantized
from infer_kernels.checks.self_check import product_roundings
from infer_kernels.linear.quantized.linear_quantized import linear_quantized_reference, linear_quantized_triton
from infer_kernels.quantization import Encoding, QuantizedWeight
from infer_proofs.kernels.pairwise import parametrize_each_value, parametrize_pairwise

DTYPES = [torch.float32, torch.float16, torch.bfloat16]
ENCODINGS: list[Encoding] = ["int8", "int4", "e2m1", "fp8_e4m3"]


def multiply(x: Tensor, weight: QuantizedWeight, bias: Tensor | None = None, *, is_invariant: bool = False) -> Tensor:
    out = torch.full((len(x), weight.out_features), torch.nan, dtype=x.dtype)
    assert linear_quantized_triton(x, weight, bias, out=out, is_invariant=is_invariant) is out
    return out


@parametrize_pairwise(
    encoding=ENCODINGS,
    dtype=DTYPES,
    features=[(1, 1), (33, 130), (256, 129)],
    group_size=[None, 16, 48, 128],
    rows=[0, 1, 17, 65],
    has_zeros=[True, False],
    is_invariant=[True, False],
)
def test_layer_equals_reference(
    encoding: Encoding,
    dtype: torch.dtype,
    features: tuple[int, int],
    group_size: int | None,
    rows: int,
    *,
    has_zeros: bool,
    is_invariant: bool,
) -> None:
    in_features, out_features = features
    weight = random_quantized(
        out_features,
        in_features,
        encoding=encoding,
        group_size=group_size,
        has_zeros=has_zeros and encoding in ("int4", "int8"),
    )
    if weight.can_be_words():
        weight = weight.in_words()
    x = torch.randn(rows, in_features).to(dtype)
    bias = torch.randn(out_features).to(dtype) if has_zeros else None
    assert_within_roundings(
        multiply(x, weight, bias, is_invariant=is_invariant),
        linear_quantized_reference(x, weight, bias),
        roundings=product_roundings(dtype, in_features),
    )


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("encoding", ENCODINGS)
@pytest.mark.parametrize("on_device", [True, False])
def test_every_code_is_exact(
    encoding: Encoding, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch, *, on_device: bool
) -> None:
    # Row i of the unit matrix picks each output's number i. fp8 is tested with and without the device's conversion.
    if not on_device:
        monkeypatch.setattr("infer_kernels.quantization.code_tiles.takes_fp8_conversion", lambda _: False)
    codes = torch.arange(256, dtype=torch.uint8).view(1, 256)
    per_byte = 2 if encoding in ("int4", "e2m1") else 1
    dtypes = {"int8": torch.int8, "fp8_e4m3": torch.float8_e4m3fn}
    in_features = 256 * per_byte
    weight = QuantizedWeight(
        encoding=encoding,
        values=codes.view(dtypes.get(encoding, torch.uint8)),
        scales=torch.ones(1, 1),
        in_features=in_features,
        group_size=in_features,
    )
    unit = torch.eye(in_features, dtype=dtype)
    numbers = weight.dequantize()[0]
    # A NaN times zero is NaN: in one row for each number, the others are left out.
    is_finite = numbers.isfinite()
    finite = weight.values.view(torch.uint8).clone()
    if not is_finite.all():
        finite[:, ~is_finite] = 0
    weight = QuantizedWeight(
        encoding=encoding,
        values=finite.view(weight.values.dtype),
        scales=weight.scales,
        in_features=in_features,
        group_size=in_features,
    )
    assert torch.equal(multiply(unit, weight)[is_finite, 0].float(), numbers[is_finite])


@pytest.mark.parametrize("on_device", [True, False])
def test_codes_that_are_no_number_are_none(monkeypatch: pytest.MonkeyPatch, *, on_device: bool) -> None:
    if not on_device:
        monkeypatch.setattr("infer_kernels.quantization.code_tiles.takes_fp8_conversion", lambda _: False)
    weight = random_quantized(3, 32, encoding="fp8_e4m3")
    weight.values.view(torch.uint8)[1, 5] = 0x7F
    weight.values.view(torch.uint8)[2, 9] = 0xFF
    is_nan = multiply(torch.randn(2, 32), weight).isnan()
    assert torch.equal(is_nan, torch.tensor([[False, True, True]]).expand(2, 3))


@parametrize_each_value(dtype=DTYPES, form=[("int8", None), ("int4", 32), ("e2m1", 32), ("fp8_e4m3", 128)])
def test_rows_of_any_slice_equal_rows_of_the_whole(form: tuple[Encoding, int | None], dtype: torch.dtype) -> None:
    encoding, group_size = form
    # So many inputs that programs would divide them where bits may depend on the rows.
    weight = random_quantized(37, 1056, encoding=encoding, group_size=group_size)
    x, bias = torch.randn(70, 1056).to(dtype), torch.randn(37).to(dtype)
    whole = multiply(x, weight, bias, is_invariant=True)
    for start, stop in ((0, 1), (69, 70), (3, 10), (5, 69), (0, 65), (63, 65)):
        assert torch.equal(multiply(x[start:stop], weight, bias, is_invariant=True), whole[start:stop])
    shuffled = torch.randperm(70)
    assert torch.equal(multiply(x[shuffled], weight, bias, is_invariant=True), whole[shuffled])


@parametrize_each_value(dtype=DTYPES, form=[("int8", None), ("int4", 128), ("int4", 48), ("e2m1", 32)], rows=[1, 7])
def test_inputs_may_be_divided_over_programs(form: tuple[Encoding, int | None], rows: int, dtype: torch.dtype) -> None:
    encoding, group_size = form
    weight = random_quantized(5, 2000, encoding=encoding, group_size=group_size)
    x, bias = torch.randn(rows, 2000).to(dtype), torch.randn(5).to(dtype)
    assert_within_roundings(multiply(x, weight, bias), linear_quantized_reference(x, weight, bias))
    assert torch.equal(multiply(x, weight, bias), multiply(x, weight, bias))


def test_a_rows_numbers_do_not_reach_other_rows() -> None:
    weight = random_quantized(9, 33, encoding="int4", group_size=16)
    x = torch.randn(3, 33)
    expected = multiply(x, weight)
    x[1, 32] = torch.nan
    actual = multiply(x, weight)
    assert torch.equal(actual[[0, 2]], expected[[0, 2]])
    assert actual[1].isnan().all()


@pytest.mark.parametrize("dtype", DTYPES)
def test_views_and_out_are_taken(dtype: torch.dtype) -> None:
    whole = random_quantized(24, 128, encoding="int4", group_size=32, has_zeros=True)
    weight = whole.rows(3, 17).columns(32, 64)
    x, bias = torch.randn(5, 96).to(dtype)[:, 16:80], torch.randn(17).to(dtype)
    out = torch.full((5, 40), 3.0, dtype=dtype)
    view = out[:, 8:25]
    linear_quantized_triton(x, weight, bias, out=view, is_invariant=False)
    assert_within_roundings(view, linear_quantized_reference(x, weight, bias))
    assert (out[:, :8] == 3.0).all()
    assert (out[:, 25:] == 3.0).all()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("has_zeros", [False, True])
@pytest.mark.parametrize("encoding", ["int8", "int4", "fp8_e4m3"])
def test_every_code_of_a_word_is_exact_with_every_zero(
    encoding: Encoding, dtype: torch.dtype, *, has_zeros: bool
) -> None:
    # Output z has the zero z; row i of the unit matrix picks its number i.
    per_byte = 2 if encoding == "int4" else 1
    codes = torch.arange(256, dtype=torch.uint8)
    if encoding == "fp8_e4m3":
        codes = torch.where((codes & 0x7F) == 0x7F, 0x80, codes)
    outputs = {"int4": 16, "int8": 256}.get(encoding, 1) if has_zeros else 1
    dtypes = {"int8": torch.int8, "fp8_e4m3": torch.float8_e4m3fn}
    lowest = -128 if encoding == "int8" else 0
    zeros = torch.arange(lowest, lowest + outputs).to(dtypes.get(encoding, torch.uint8)).unsqueeze(-1)
    weight = QuantizedWeight(
        encoding=encoding,
        values=codes.view(dtypes.get(encoding, torch.uint8)).expand(outputs, 256).contiguous(),
        scales=torch.ones(outputs, 1),
        zeros=zeros if has_zeros and encoding != "fp8_e4m3" else None,
        in_features=256 * per_byte,
        group_size=256 * per_byte,
    )
    actual = multiply(torch.eye(weight.in_features, dtype=dtype), weight.in_words())
    expected = weight.dequantize().T
    assert torch.equal(actual.float(), expected)


@parametrize_each_value(
    dtype=DTYPES,
    form=[
        *(("int8", None, False), ("int8", 128, True), ("int4", 32, True), ("int4", 64, False), ("int4", 128, False)),
        ("fp8_e4m3", None, False),
    ],
)
def test_rows_of_words_have_the_same_bits_in_any_company(
    form: tuple[Encoding, int | None, bool], dtype: torch.dtype
) -> None:
    encoding, group_size, has_zeros = form
    weight = random_quantized(37, 1056, encoding=encoding, group_size=group_size, has_zeros=has_zeros)
    words, x = weight.in_words(), torch.randn(70, 1056).to(dtype)
    whole = multiply(x, words, is_invariant=True)
    assert_within_roundings(whole, linear_quantized_reference(x, weight))
    assert_within_roundings(multiply(x[:7], words), linear_quantized_reference(x[:7], weight))
    for start, stop in ((0, 1), (69, 70), (3, 10), (0, 65)):
        assert torch.equal(multiply(x[start:stop], words, is_invariant=True), whole[start:stop])


def test_a_group_whose_scale_is_nan_is_nan() -> None:
    weight = random_quantized(3, 64, encoding="int4", group_size=32)
    weight.scales[1, 1] = torch.nan
    is_nan = multiply(torch.randn(2, 64).bfloat16(), weight.in_words()).isnan()
    assert torch.equal(is_nan, torch.tensor([[False, True, False]]).expand(2, 3))
