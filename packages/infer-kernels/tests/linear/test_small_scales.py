"""Scales in fp16, and in int8 with factors; codes of six bits and of IQ4: the same numbers in fewer bits."""

from collections.abc import Callable
from dataclasses import replace
from itertools import product

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from infer_kernels import QuantizedWeight, embedding_quantized, fused_moe, linear, prepack, prepack_experts
from infer_kernels.checks.inputs.experts import random_experts
from infer_kernels.checks.inputs.quantized_weights import random_quantized
from infer_kernels.cpu import PackedQuantizedWeight
from infer_kernels.quantization import Encoding, pack_sixes
from infer_kernels.quantization.code_packing import unpack_sixes
from infer_kernels.quantization.quantized_rows import linear_quantized_rows_reference
from infer_proofs.kernels.cpu_kernels import needs_cpu_kernels

SHAPES = ((37, 256), (64, 512), (33, 2304), (40, 160))
ROWS = (1, 2, 3, 7, 8, 13, 33)
GROUPS = (None, 16, 32, 64)
FORMS = [
    (encoding, scale_dtype, has_minimums)
    for encoding, scale_dtype, has_minimums in product(
        ("int8", "int6", "int4", "iq4"), (torch.float32, torch.float16, torch.int8), (False, True)
    )
    if encoding != "iq4" or not has_minimums
]


def packed(weight: QuantizedWeight) -> PackedQuantizedWeight:
    made = prepack(weight)
    assert isinstance(made, PackedQuantizedWeight)
    return made


def as_float32(weight: QuantizedWeight) -> QuantizedWeight:
    """The same numbers as int8 with fp32 scales, which other tests compare with the formula."""
    plain = weight.with_float_scales()
    return plain if weight.encoding == "int8" else plain.as_encoding("int8")


@given(seed=st.integers(0, 2**32), rows=st.integers(1, 4), units=st.integers(0, 5))
def test_codes_of_six_bits_come_back(seed: int, rows: int, units: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    codes = torch.randint(0, 64, (rows, 16 * units), dtype=torch.uint8, generator=generator)
    values = pack_sixes(codes)
    assert values.shape == (rows, 12 * units)
    assert torch.equal(unpack_sixes(values), codes)


@needs_cpu_kernels
@pytest.mark.covers("quantization/cpu-products")
@pytest.mark.parametrize("group_size", GROUPS)
@pytest.mark.parametrize(("encoding", "scale_dtype", "has_minimums"), FORMS)
def test_products_have_the_bits_of_int8_with_float_scales(
    *, encoding: Encoding, scale_dtype: torch.dtype, has_minimums: bool, group_size: int | None
) -> None:
    for out_features, in_features in SHAPES:
        if scale_dtype == torch.int8 and group_size is None:
            continue
        weight = random_quantized(
            out_features,
            in_features,
            encoding=encoding,
            group_size=group_size,
            has_minimums=has_minimums,
            scale_dtype=scale_dtype,
        )
        small, plain = packed(weight), packed(as_float32(weight))
        ids = torch.tensor([out_features - 1, 0, 31], dtype=torch.int32)
        looked_up = embedding_quantized(ids, small, dtype=torch.float32)
        assert torch.equal(looked_up, weight.dequantize()[ids.long()])
        for rows in ROWS:
            x = torch.randn(rows, in_features)
            x[:, in_features // 3] *= 100  # an outlier
            found = linear(x, small)
            assert torch.equal(found, linear(x, plain))
            expected = linear_quantized_rows_reference(x, weight)
            torch.testing.assert_close(found, expected, rtol=0, atol=1e-5 * expected.abs().max().item())


@needs_cpu_kernels
@pytest.mark.parametrize("scale_dtype", [torch.float16, torch.int8])
@pytest.mark.parametrize("encoding", ["int6", "iq4"])
def test_a_row_has_the_same_bits_in_any_company(encoding: Encoding, scale_dtype: torch.dtype) -> None:
    """Groups of 64 are what matrix instructions multiply, from some rows on."""
    weight = packed(random_quantized(70, 512, encoding=encoding, group_size=64, scale_dtype=scale_dtype))
    x = torch.randn(150, 512).bfloat16()
    whole = linear(x, weight)
    for rows in (1, 3, 8, 17, 70):
        assert torch.equal(linear(x[:rows], weight), whole[:rows]), rows


@needs_cpu_kernels
@pytest.mark.parametrize("encoding", ["int6", "iq4"])
@pytest.mark.parametrize("code", [0, -1])
def test_the_largest_codes_of_the_largest_inputs_do_not_overflow(encoding: Encoding, code: int) -> None:
    weight = random_quantized(32, 512, encoding=encoding, group_size=32)
    values = torch.full_like(weight.values, 255 if code else 0)
    extreme = replace(weight, values=values, scales=torch.ones_like(weight.scales))
    x = torch.cat([torch.full((4, 512), 1.0), torch.full((4, 512), -1.0)])
    torch.testing.assert_close(linear(x, packed(extreme)), x @ extreme.dequantize().T, rtol=1e-5, atol=1e-3)


@needs_cpu_kernels
@pytest.mark.covers("quantization/experts")
@pytest.mark.parametrize(("encoding", "has_minimums"), [("int4", True), ("int6", False), ("iq4", False)])
def test_experts_have_the_bits_of_int8_with_float_scales(*, encoding: Encoding, has_minimums: bool) -> None:
    drawn = random_experts(tokens=40, experts=4, experts_per_token=2, hidden=256, intermediate=256, dtype=torch.float32)
    weights = [
        random_quantized(
            *each.shape, encoding=encoding, group_size=32, has_minimums=has_minimums, scale_dtype=torch.int8
        )
        for each in (drawn.gate_up, drawn.down)
    ]

    def computed(form: Callable[[QuantizedWeight], QuantizedWeight]) -> torch.Tensor:
        gate_up, down = (prepack_experts(form(each)) for each in weights)
        ids, shares = drawn.expert_ids, drawn.expert_weights
        return fused_moe(drawn.x, gate_up, down, ids, shares, activation="silu_and_mul")

    assert torch.equal(computed(lambda weight: weight), computed(as_float32))


@pytest.mark.parametrize(("encoding", "scale_dtype", "has_minimums"), FORMS)
def test_parts_of_a_weight_have_its_numbers(
    *, encoding: Encoding, scale_dtype: torch.dtype, has_minimums: bool
) -> None:
    weight = random_quantized(
        24, 512, encoding=encoding, group_size=32, has_minimums=has_minimums, scale_dtype=scale_dtype
    )
    numbers = weight.dequantize()
    assert torch.equal(weight.rows(8, 5).dequantize(), numbers[8:13])
    for start, size in ((0, 256), (256, 256), (32, 96), (48, 64), (40, 24)):
        assert torch.equal(weight.columns(start, size).dequantize(), numbers[:, start : start + size]), (start, size)
    assert torch.equal(weight.with_group_size(16).dequantize(), numbers)
    assert torch.equal(weight.with_float_scales().dequantize(), numbers)
    into = QuantizedWeight.empty(
        24,
        512,
        encoding=encoding,
        group_size=16,
        has_minimums=has_minimums,
        scale_dtype=scale_dtype,
        device=torch.device("cpu"),
    )
    into.copy_(weight)
    assert torch.equal(into.dequantize(), numbers)


def test_weights_that_do_not_fit_are_refused() -> None:
    weight = random_quantized(8, 256, encoding="iq4", group_size=32, scale_dtype=torch.int8)
    with pytest.raises(ValueError, match="a weight iq4, perhaps with zeros, does not become int6"):
        weight.as_encoding("int6")
    other = random_quantized(8, 256, encoding="iq4", group_size=32, scale_dtype=torch.float16)
    with pytest.raises(ValueError, match=r"`source` has scales in torch\.float16; pass torch\.int8"):
        weight.copy_(other)
