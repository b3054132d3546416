"""Dense layers with quantized weights, in Triton and in PyTorch: every encoding, grouping and dtype; equal bits.

The C++ kernels multiply rows in eight bits: `test_cpu_quantized.py`.
"""

from dataclasses import replace
from typing import Literal
from unittest.mock import patch

import pytest
import torch
from torch import Tensor

from infer_kernels import embedding_quantized, linear, linear_invariant, prepack
from infer_kernels.checks.closeness import assert_within_roundings
from infer_kernels.checks.inputs.quantized_weights import random_quantized
from infer_kernels.checks.self_check import product_roundings
from infer_kernels.linear.quantized.linear_quantized import (
    linear_quantized_reference,
    linear_quantized_torch,
    linear_quantized_triton,
)
from infer_kernels.quantization import Encoding, QuantizedWeight
from infer_kernels.reference import embedding_quantized_reference
from infer_proofs.kernels.interpreted.recorded_launches import record_launches
from infer_proofs.kernels.pairwise import parametrize_each_value, parametrize_pairwise
from infer_proofs.kernels.paths import DTYPES, INTERPRETED

pytestmark = pytest.mark.usefixtures("triton_or_pytorch")

ENCODINGS: list[Encoding] = ["int8", "int4", "e2m1", "fp8_e4m3"]
WITH_OFFSETS: list[Encoding] = ["int8", "int4"]
Form = tuple[Encoding, Literal["plain", "zeros", "minimums"]]
FORMS: list[Form] = [(each, "plain") for each in ENCODINGS]
FORMS += [(each, "zeros") for each in WITH_OFFSETS] + [(each, "minimums") for each in WITH_OFFSETS]
triton_only = pytest.mark.usefixtures("triton_only")


def random_weight(*shape: int, form: Form, group_size: int | None, in_words: bool = True) -> QuantizedWeight:
    encoding, offsets = form
    weight = random_quantized(
        *shape,
        encoding=encoding,
        group_size=group_size,
        has_zeros=offsets == "zeros",
        has_minimums=offsets == "minimums",
    )
    return weight.in_words() if in_words and weight.can_be_words() else weight


def multiply(x: Tensor, weight: QuantizedWeight, bias: Tensor | None = None, *, is_invariant: bool = False) -> Tensor:
    out = torch.full((len(x), weight.out_features), torch.nan, dtype=x.dtype)
    compute = linear_quantized_triton if INTERPRETED else linear_quantized_torch
    assert compute(x, weight, bias, out=out, is_invariant=is_invariant) is out
    return out


def assert_product(actual: Tensor, x: Tensor, weight: QuantizedWeight, bias: Tensor | None = None) -> None:
    """Compare with the reference, and of minimums with numbers that are rounded to the dtype of `x` as kernels do."""
    if weight.minimums is None or not INTERPRETED:
        roundings = product_roundings(x.dtype, weight.in_features)
        assert_within_roundings(actual, linear_quantized_reference(x, weight, bias), roundings)
        return
    expected = x.double() @ weight.dequantize(x.dtype).double().T + (0.0 if bias is None else bias.double())
    assert_within_roundings(actual, expected.to(x.dtype))
    assert_within_roundings(actual, linear_quantized_reference(x, weight, bias), roundings=8)


@parametrize_pairwise(
    form=FORMS,
    dtype=DTYPES,
    features=[(1, 1), (33, 130), (256, 129), (352, 40)],
    group_size=[None, 16, 32, 48, 128],
    call=[(0, True, False), (1, False, True), (17, True, True), (17, False, False), (65, True, False)],
    in_words=[True, False],
)
def test_layer_equals_reference(
    form: Form,
    dtype: torch.dtype,
    features: tuple[int, int],
    group_size: int | None,
    call: tuple[int, bool, bool],
    *,
    in_words: bool,
) -> None:
    (in_features, out_features), (rows, with_bias, is_invariant) = features, call
    weight = random_weight(out_features, in_features, form=form, group_size=group_size, in_words=in_words)
    x, bias = torch.randn(rows, in_features).to(dtype), torch.randn(out_features).to(dtype)
    given_bias = bias if with_bias else None
    assert_product(multiply(x, weight, given_bias, is_invariant=is_invariant), x, weight, given_bias)


@triton_only
@parametrize_pairwise(encoding=ENCODINGS, dtype=DTYPES, on_device=[True, False])
def test_every_code_is_exact(
    encoding: Encoding, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch, *, on_device: bool
) -> None:
    # Row i of the unit matrix picks each output's number i. fp8 is tested with and without the device's conversion.
    if not on_device:
        monkeypatch.setattr("infer_kernels.quantization.code_tiles.takes_fp8_conversion", lambda _: False)
    weight = weight_of_all_codes(encoding, outputs=1)
    actual = multiply(torch.eye(weight.in_features, dtype=dtype), weight)
    assert torch.equal(actual.float(), weight.dequantize().T)


def weight_of_all_codes(encoding: Encoding, *, outputs: int, zeros: Tensor | None = None) -> QuantizedWeight:
    """Return rows of all bytes, but of fp8 zeros where it has NaN: NaN times zero is NaN."""
    codes = torch.arange(256, dtype=torch.uint8)
    if encoding == "fp8_e4m3":
        codes = torch.where((codes & 0x7F) == 0x7F, 0x80, codes)
    in_features = 256 * (2 if encoding in ("int4", "e2m1") else 1)
    dtypes = {"int8": torch.int8, "fp8_e4m3": torch.float8_e4m3fn}
    return QuantizedWeight(
        encoding=encoding,
        values=codes.view(dtypes.get(encoding, torch.uint8)).expand(outputs, 256).contiguous(),
        scales=torch.ones(outputs, 1),
        zeros=zeros,
        in_features=in_features,
        group_size=in_features,
    )


@triton_only
@parametrize_pairwise(encoding=["int8", "int4", "fp8_e4m3"], has_zeros=[False, True], dtype=DTYPES)
def test_every_code_of_a_word_is_exact_with_every_zero(
    encoding: Encoding, dtype: torch.dtype, *, has_zeros: bool
) -> None:
    # Output z has the zero z; row i of the unit matrix picks its number i.
    zeros = None
    if has_zeros and encoding != "fp8_e4m3":
        lowest, outputs, dtype_of_zeros = {"int8": (-128, 256, torch.int8), "int4": (0, 16, torch.uint8)}[encoding]
        zeros = torch.arange(lowest, lowest + outputs).to(dtype_of_zeros).unsqueeze(-1)
    weight = weight_of_all_codes(encoding, outputs=1 if zeros is None else len(zeros), zeros=zeros)
    actual = multiply(torch.eye(weight.in_features, dtype=dtype), weight.in_words())
    assert torch.equal(actual.float(), weight.dequantize().T)


@pytest.mark.parametrize("on_device", [True, False])
def test_codes_that_are_no_number_are_none(monkeypatch: pytest.MonkeyPatch, *, on_device: bool) -> None:
    if not on_device:
        monkeypatch.setattr("infer_kernels.quantization.code_tiles.takes_fp8_conversion", lambda _: False)
    weight = random_quantized(3, 32, encoding="fp8_e4m3")
    weight.values.view(torch.uint8)[1, 5] = 0x7F
    weight.values.view(torch.uint8)[2, 9] = 0xFF
    is_nan = multiply(torch.randn(2, 32), weight).isnan()
    assert torch.equal(is_nan, torch.tensor([[False, True, True]]).expand(2, 3))


@triton_only
@parametrize_pairwise(encoding=WITH_OFFSETS, group_size=[16, 32, 48, 64, 256], dtype=DTYPES, in_words=[True, False])
def test_every_group_of_a_tile_has_its_own_scale_and_minimum(
    encoding: Encoding, group_size: int, dtype: torch.dtype, *, in_words: bool
) -> None:
    # sgl-project/sglang#37759: a tile of several groups took the first one's zeros. Row i of the unit matrix picks
    # number i. Scales are powers of two, and minimums multiples of them: every number is exact. Some minimums are
    # negative, as those of Q4_1, and one scale is 0, as of a block of equal numbers.
    in_features = 336 if group_size == 48 else 352
    weight = random_weight(5, in_features, form=(encoding, "minimums"), group_size=group_size, in_words=in_words)
    assert weight.minimums is not None
    exponents = torch.arange(weight.scales.numel()).view_as(weight.scales) % 5 - 2.0
    weight.scales.copy_(exponents.exp2())
    weight.minimums.copy_(weight.scales * (torch.arange(weight.scales.numel()).view_as(weight.scales) % 7 - 2))
    weight.scales[2, -1] = 0.0
    unit = torch.eye(in_features, dtype=dtype)
    for is_invariant in (False, True):
        assert torch.equal(multiply(unit, weight, is_invariant=is_invariant).float(), weight.dequantize().T)


@triton_only
@pytest.mark.parametrize("encoding", WITH_OFFSETS)
@pytest.mark.parametrize("in_words", [True, False])
def test_what_lies_around_scales_and_minimums_reaches_nothing(encoding: Encoding, *, in_words: bool) -> None:
    # vllm-project/vllm#47303: scales past a row's last group were read, and were NaN. 352 inputs end within a tile.
    weight = random_weight(9, 352, form=(encoding, "minimums"), group_size=32, in_words=in_words)
    assert weight.minimums is not None

    def surrounded(of_groups: Tensor) -> Tensor:
        memory = torch.full((11, of_groups.shape[1] + 7), torch.nan)
        return memory[1:10, 3 : 3 + of_groups.shape[1]].copy_(of_groups)

    inside = replace(weight, scales=surrounded(weight.scales), minimums=surrounded(weight.minimums))
    for rows in (3, 70):
        x = torch.randn(rows, 352).bfloat16()
        assert torch.equal(multiply(x, inside), multiply(x, weight))
    ids = torch.tensor([8, 0])
    expected = embedding_quantized_reference(ids, weight, dtype=torch.float32)
    assert torch.equal(embedding_quantized(ids, inside, dtype=torch.float32), expected)


@parametrize_each_value(
    dtype=DTYPES,
    in_words=[True, False],
    form=[
        *(
            (("int8", "plain"), None),
            (("int8", "zeros"), 128),
            (("int8", "minimums"), 32),
            (("int8", "minimums"), None),
        ),
        *((("int4", "plain"), 64), (("int4", "plain"), 128), (("int4", "zeros"), 32), (("int4", "minimums"), 16)),
        *((("int4", "minimums"), 32), (("int4", "minimums"), 48), (("e2m1", "plain"), 32)),
        *((("fp8_e4m3", "plain"), None), (("fp8_e4m3", "plain"), 128)),
    ],
)
def test_rows_of_any_slice_equal_rows_of_the_whole(
    form: tuple[Form, int | None], dtype: torch.dtype, *, in_words: bool
) -> None:
    # So many inputs that programs would divide them where bits may depend on the rows.
    weight = random_weight(37, 1056, form=form[0], group_size=form[1], in_words=in_words)
    x, bias = torch.randn(70, 1056).to(dtype), torch.randn(37).to(dtype)
    whole = multiply(x, weight, bias, is_invariant=True)
    assert_product(whole, x, weight, bias)
    for picked in (slice(0, 1), slice(3, 10), slice(63, 65), torch.randperm(70)[:20]):
        assert torch.equal(multiply(x[picked], weight, bias, is_invariant=True), whole[picked])


@triton_only
@parametrize_each_value(
    dtype=DTYPES,
    rows=[1, 7, 13],
    form=[
        *((("int8", "plain"), None), (("int4", "plain"), 128), (("int4", "plain"), 48), (("e2m1", "plain"), 32)),
        *((("int4", "minimums"), 32), (("int4", "minimums"), 16), (("int8", "minimums"), 32)),
        (("int8", "minimums"), 48),
    ],
)
def test_inputs_may_be_divided_over_programs(form: tuple[Form, int | None], rows: int, dtype: torch.dtype) -> None:
    weight = random_weight(20, 2016, form=form[0], group_size=form[1])
    x, bias, semaphores = torch.randn(rows, 2016).to(dtype), torch.randn(20).to(dtype), torch.zeros(64).int()
    apart = multiply(x, weight, bias)
    assert_product(apart, x, weight, bias)
    out = torch.full_like(apart, torch.nan)
    with record_launches() as launches:
        linear_quantized_triton(x, weight, bias, out=out, is_invariant=False, semaphores=semaphores)
    assert len(launches) == 1
    assert torch.equal(out, apart)
    assert torch.equal(multiply(x, weight, bias), apart)


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
    (linear_quantized_triton if INTERPRETED else linear_quantized_torch)(x, weight, bias, out=view, is_invariant=False)
    assert_within_roundings(view, linear_quantized_reference(x, weight, bias))
    assert (out[:, :8] == 3.0).all()
    assert (out[:, 25:] == 3.0).all()


def test_a_group_whose_scale_is_nan_is_nan() -> None:
    weight = random_quantized(3, 64, encoding="int4", group_size=32)
    weight.scales[1, 1] = torch.nan
    is_nan = multiply(torch.randn(2, 64).bfloat16(), weight.in_words()).isnan()
    assert torch.equal(is_nan, torch.tensor([[False, True, False]]).expand(2, 3))


@triton_only
@pytest.mark.parametrize("encoding", WITH_OFFSETS)
def test_public_ops_take_prepacked_weights_to_the_kernels(encoding: Encoding) -> None:
    weight = random_weight(40, 64, form=(encoding, "minimums"), group_size=32, in_words=False)
    numbers, x, ids = weight.dequantize(), torch.randn(5, 64), torch.tensor([3, 39])
    kept = prepack(weight)
    assert isinstance(kept, QuantizedWeight)
    assert kept.order == "words"
    with record_launches() as launches:
        assert_within_roundings(linear(x, kept), x @ numbers.T, 8)
        assert_within_roundings(linear_invariant(x, kept), x @ numbers.T, 8)
        assert torch.equal(embedding_quantized(ids, kept, dtype=torch.float32), numbers[ids])
    assert len(launches) == 3


@triton_only
@pytest.mark.parametrize(
    ("encoding", "scale_dtype"),
    [("int6", torch.float32), ("iq4", torch.float32), ("int4", torch.float16), ("int8", torch.int8)],
)
def test_what_only_a_cpu_multiplies_is_dequantized_elsewhere(encoding: Encoding, scale_dtype: torch.dtype) -> None:
    weight = random_quantized(48, 256, encoding=encoding, group_size=32, scale_dtype=scale_dtype)
    x, ids = torch.randn(5, 256), torch.tensor([47, 0])
    with record_launches() as launches:
        assert_within_roundings(linear(x, prepack(weight)), linear_quantized_reference(x, weight))
        assert torch.equal(embedding_quantized(ids, weight, dtype=torch.float32), weight.dequantize()[ids])
    assert not launches


@pytest.mark.usefixtures("cpu_only")
def test_outputs_are_dequantized_in_pieces_of_bounded_memory() -> None:
    weight = random_quantized(1501, 3000, encoding="int4", group_size=16, has_zeros=True)
    x, bias = torch.randn(3, 3000), torch.randn(1501)
    sizes = []
    dequantize = QuantizedWeight.dequantize

    def record(piece: QuantizedWeight, dtype: torch.dtype = torch.float32) -> Tensor:
        sizes.append(piece.out_features)
        return dequantize(piece, dtype)

    with patch.object(QuantizedWeight, "dequantize", record):
        out = multiply(x, weight, bias)
    assert sum(sizes) == 1501
    assert max(sizes) * 3000 * 16 <= 32 * 2**20  # bytes of four tensors in fp32
    assert_within_roundings(out, linear_quantized_reference(x, weight, bias))
