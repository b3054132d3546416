"""MXFP4 and NVFP4 in tensor cores' order, interpreted: codes with every scale, all dtypes, layers and experts."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from infer_kernels.checks.closeness import assert_within_roundings
from infer_kernels.checks.inputs.experts import random_experts
from infer_kernels.checks.inputs.quantized_experts import QuantizedExperts, quantized_experts
from infer_kernels.checks.inputs.quantized_weights import random_quantized
from infer_kernels.linear.quantized.linear_quantized import linear_quantized_reference, linear_quantized_triton
from infer_kernels.moe.activation import choose_activation
from infer_kernels.moe.fused_moe import fused_moe_quantized_reference
from infer_kernels.moe.fused_moe_quantized import fused_moe_quantized_triton
from infer_kernels.quantization import ENCODINGS, Encoding, QuantizedWeight, pack_pairs, tile_microscaled
from infer_proofs.kernels.pairwise import parametrize_pairwise

pytestmark = pytest.mark.usefixtures("triton_only")

GROUPS = {name: traits.tiled_group for name, traits in ENCODINGS.items() if traits.tiled}
DTYPES = [torch.float32, torch.float16, torch.bfloat16]
LARGEST = 128  # exponent plus 127 of the largest scale that tiles take


def multiply(x: Tensor, weight: QuantizedWeight, bias: Tensor | None = None, *, is_invariant: bool = False) -> Tensor:
    out = torch.full((len(x), weight.out_features), torch.nan, dtype=x.dtype)
    return linear_quantized_triton(x, weight, bias, out=out, is_invariant=is_invariant)


def weight_of_all_codes(scales: range) -> QuantizedWeight:
    """Return a row for each scale, whose 32 inputs are all codes twice."""
    codes = pack_pairs(torch.arange(32, dtype=torch.uint8) % 16)
    return QuantizedWeight(
        encoding="mxfp4",
        values=codes.repeat(len(scales), 1),
        scales=torch.tensor(scales, dtype=torch.uint8)[:, None],
        in_features=32,
        group_size=32,
    )


@pytest.mark.parametrize("is_tiled", [True, False])
@pytest.mark.parametrize("dtype", DTYPES)
def test_every_code_with_every_scale_is_exact(dtype: torch.dtype, *, is_tiled: bool) -> None:
    # Row i of the unit matrix picks input i. 6 * 2^126 overflows bf16 and fp32 alike; fp16 has fewer numbers.
    scales = range(127 - 14, 127 + 2) if dtype == torch.float16 else range(LARGEST + 1 if is_tiled else 253)
    plain = weight_of_all_codes(scales)
    weight = tile_microscaled(plain) if is_tiled else plain
    assert (weight.encoding == "mxfp4_tiled") == is_tiled
    actual = multiply(torch.eye(32, dtype=dtype), weight)
    assert torch.equal(actual.float().T, plain.dequantize())


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_scale_that_is_no_number_or_too_large_is_not_lost(dtype: torch.dtype) -> None:
    # 255 is NaN in e8m0, which a shift of exponents alone would make infinite.
    plain = weight_of_all_codes(range(127, 131))
    plain.scales[1] = 255
    weight = tile_microscaled(plain)
    assert weight is plain
    actual = multiply(torch.eye(32, dtype=dtype), weight)
    assert actual[:, 1].isnan().all()
    assert torch.equal(actual[:, [0, 2, 3]].float().T, plain.dequantize()[[0, 2, 3]])


@pytest.mark.parametrize("is_tiled", [True, False])
@pytest.mark.parametrize("dtype", DTYPES)
def test_every_code_of_nvfp4_with_every_scale_is_exact(dtype: torch.dtype, *, is_tiled: bool) -> None:
    # Of e4m3 from 0 by subnormal ones to 448, and one that is negative where nothing is tiled.
    scales = torch.tensor([*range(0x7F), *(() if is_tiled else (0x83, 0xFE))], dtype=torch.uint8)
    plain = QuantizedWeight(
        encoding="nvfp4",
        values=pack_pairs(torch.arange(16, dtype=torch.uint8)).repeat(len(scales), 1),
        scales=scales.view(torch.float8_e4m3fn)[:, None],
        in_features=16,
        group_size=16,
        row_scales=torch.full((len(scales), 1), 0.5),
    )
    weight = tile_microscaled(plain)
    assert (weight.encoding == "nvfp4_tiled") == is_tiled
    actual = multiply(torch.eye(16, dtype=dtype), weight)
    assert torch.equal(actual.float().T, plain.dequantize())
    assert torch.equal(weight.dequantize(), plain.dequantize())


def test_a_scale_of_nvfp4_that_is_nan_is_not_lost() -> None:
    plain = random_quantized(3, 64, encoding="nvfp4", group_size=16)
    plain.scales.view(torch.uint8)[1, 2] = 0x7F
    weight = tile_microscaled(plain)
    assert weight is plain
    is_nan = multiply(torch.randn(2, 64).bfloat16(), weight).isnan()
    assert torch.equal(is_nan, torch.tensor([[False, True, False]]).expand(2, 3))


@parametrize_pairwise(
    encoding=["mxfp4", "nvfp4"],
    dtype=DTYPES,
    in_features=[32, 250, 512, 1120],
    out_features=[1, 70],
    rows=[0, 1, 17, 65],
    with_bias=[True, False],
    is_invariant=[True, False],
)
def test_layer_equals_reference(
    encoding: Encoding,
    dtype: torch.dtype,
    in_features: int,
    out_features: int,
    rows: int,
    *,
    with_bias: bool,
    is_invariant: bool,
) -> None:
    weight = random_quantized(out_features, in_features, encoding=encoding, group_size=GROUPS[encoding])
    x = torch.randn(rows, in_features).to(dtype)
    bias = torch.randn(out_features).to(dtype) if with_bias else None
    actual = multiply(x, tile_microscaled(weight), bias, is_invariant=is_invariant)
    assert_within_roundings(actual, linear_quantized_reference(x, weight, bias))


@pytest.mark.parametrize("encoding", ["mxfp4", "nvfp4"])
@pytest.mark.parametrize("dtype", DTYPES)
def test_rows_of_any_slice_equal_rows_of_the_whole(dtype: torch.dtype, encoding: Encoding) -> None:
    weight = tile_microscaled(random_quantized(37, 544, encoding=encoding, group_size=GROUPS[encoding]))
    x = torch.randn(70, 544).to(dtype)
    whole = multiply(x, weight, is_invariant=True)
    for start, stop in ((0, 1), (3, 10), (5, 69)):
        assert torch.equal(multiply(x[start:stop], weight, is_invariant=True), whole[start:stop])


def add_up_experts(layer: QuantizedExperts, *, is_invariant: bool) -> Tensor:
    x, gate_up, down, expert_ids, expert_weights = layer.arguments
    return fused_moe_quantized_triton(
        x,
        gate_up,
        down,
        expert_ids,
        expert_weights,
        activation=choose_activation("clamped_swiglu"),
        **layer.plain.biases,
        out=torch.full_like(x, torch.nan),
        is_invariant=is_invariant,
    )


@pytest.mark.parametrize(
    ("dtype", "encoding", "tokens", "intermediate", "is_invariant"),
    [
        (torch.bfloat16, "mxfp4", 1, 320, False),
        (torch.bfloat16, "int4", 1, 320, False),
        (torch.bfloat16, "nvfp4", 1, 320, False),
        (torch.float16, "nvfp4", 40, 96, False),
        (torch.bfloat16, "nvfp4", 13, 320, True),
        (torch.bfloat16, "mxfp4", 40, 96, False),
        (torch.bfloat16, "mxfp4", 120, 96, False),
        (torch.bfloat16, "mxfp4", 13, 320, True),
        (torch.float16, "mxfp4", 13, 96, False),
        (torch.float32, "mxfp4", 3, 96, True),
    ],
)
def test_sum_of_experts_equals_reference(
    dtype: torch.dtype,
    encoding: Encoding,
    tokens: int,
    intermediate: int,
    monkeypatch: pytest.MonkeyPatch,
    *,
    is_invariant: bool,
) -> None:
    # Tiles have 16 rows, 32 and 64 as experts have; inputs are divided over programs where tokens are few.
    monkeypatch.setattr("infer_kernels.moe.fused_moe_quantized._LEAST_INNER", 64)
    monkeypatch.setattr("infer_kernels.moe.fused_moe_quantized._LONG", 300)
    plain = random_experts(
        tokens=tokens, experts=3, experts_per_token=2, hidden=64, intermediate=intermediate, dtype=dtype
    )
    layer = quantized_experts(plain, encoding=encoding, group_size=GROUPS.get(encoding, 32))
    tiled = replace(layer, gate_up=tile_microscaled(layer.gate_up), down=tile_microscaled(layer.down))
    actual = add_up_experts(tiled, is_invariant=is_invariant)
    biases: dict[str, Any] = plain.biases
    expected = fused_moe_quantized_reference(*layer.arguments, activation="clamped_swiglu", **biases)
    assert_within_roundings(actual, expected, 4)
    assert torch.equal(actual, add_up_experts(tiled, is_invariant=is_invariant))


@pytest.mark.parametrize(
    ("encoding", "dtype"),
    [
        ("mxfp4", torch.bfloat16),
        ("nvfp4", torch.bfloat16),
        pytest.param("mxfp4", torch.float16, marks=pytest.mark.full),
    ],
)
def test_rows_of_tiled_experts_are_the_same_bits_in_any_company(encoding: Encoding, dtype: torch.dtype) -> None:
    plain = random_experts(tokens=40, experts=3, experts_per_token=2, hidden=64, intermediate=320, dtype=dtype)
    layer = quantized_experts(plain, encoding=encoding, group_size=GROUPS[encoding])
    tiled = replace(layer, gate_up=tile_microscaled(layer.gate_up), down=tile_microscaled(layer.down))
    whole = add_up_experts(tiled, is_invariant=True)
    for picked in (slice(0, 1), slice(3, 20), torch.randperm(40)):
        part = {name: getattr(plain, name)[picked] for name in ("x", "expert_ids", "expert_weights")}
        assert torch.equal(
            add_up_experts(replace(tiled, plain=replace(plain, **part)), is_invariant=True), whole[picked]
        )
