"""Quantized weights in plain PyTorch: what machines without kernels compute, against the references."""

from unittest.mock import patch

import pytest
import torch

from infer_kernels.checks.closeness import assert_within_roundings
from infer_kernels.checks.inputs.experts import random_experts
from infer_kernels.checks.inputs.quantized_experts import quantized_experts
from infer_kernels.checks.inputs.quantized_weights import random_quantized
from infer_kernels.embedding import embedding_quantized_torch
from infer_kernels.linear.quantized.linear_fp8 import linear_fp8_torch, takes_fp8_products
from infer_kernels.linear.quantized.linear_quantized import linear_quantized_torch
from infer_kernels.moe.activation import choose_activation
from infer_kernels.moe.fused_moe_quantized import fused_moe_quantized_torch
from infer_kernels.quantization import Encoding, QuantizedWeight
from infer_kernels.reference import (
    embedding_quantized_reference,
    fused_moe_quantized_reference,
    linear_fp8_reference,
    linear_quantized_reference,
    quantize_rows_fp8_reference,
)
from infer_proofs.kernels.pairwise import parametrize_pairwise

DTYPES = [torch.float32, torch.float16, torch.bfloat16]
ENCODINGS: list[Encoding] = ["int8", "int4", "e2m1", "fp8_e4m3"]


@parametrize_pairwise(
    encoding=ENCODINGS,
    dtype=DTYPES,
    features=[(1, 1), (33, 130), (80, 37)],
    group_size=[None, 16, 48],
    rows=[0, 1, 17],
    with_bias=[True, False],
    is_invariant=[True, False],
)
def test_layer_equals_reference(
    encoding: Encoding,
    dtype: torch.dtype,
    features: tuple[int, int],
    group_size: int | None,
    rows: int,
    *,
    with_bias: bool,
    is_invariant: bool,
) -> None:
    in_features, out_features = features
    weight = random_quantized(out_features, in_features, encoding=encoding, group_size=group_size)
    x = torch.randn(rows, in_features).to(dtype)
    bias = torch.randn(out_features).to(dtype) if with_bias else None
    out = torch.full((rows, out_features), torch.nan, dtype=dtype)
    assert linear_quantized_torch(x, weight, bias, out=out, is_invariant=is_invariant) is out
    assert_within_roundings(out, linear_quantized_reference(x, weight, bias))


def test_outputs_are_dequantized_in_pieces_of_bounded_memory() -> None:
    weight = random_quantized(1501, 3000, encoding="int4", group_size=16, has_zeros=True)
    x, bias = torch.randn(3, 3000), torch.randn(1501)
    sizes = []
    dequantize = QuantizedWeight.dequantize

    def record(piece: QuantizedWeight, dtype: torch.dtype = torch.float32) -> torch.Tensor:
        sizes.append(piece.out_features)
        return dequantize(piece, dtype)

    out = torch.empty(3, 1501)
    with patch.object(QuantizedWeight, "dequantize", record):
        linear_quantized_torch(x, weight, bias, out=out, is_invariant=False)
    assert sum(sizes) == 1501
    assert max(sizes) * 3000 * 16 <= 32 * 2**20  # bytes of four tensors in fp32
    assert_within_roundings(out, linear_quantized_reference(x, weight, bias))


@pytest.mark.parametrize("encoding", ENCODINGS)
def test_rows_of_any_slice_equal_rows_of_the_whole(encoding: Encoding) -> None:
    weight = random_quantized(130, 160, encoding=encoding, group_size=32)
    x = torch.randn(70, 160).bfloat16()

    def rows(picked: torch.Tensor | slice) -> torch.Tensor:
        out = torch.empty(len(x[picked]), 130, dtype=x.dtype)
        return linear_quantized_torch(x[picked], weight, None, out=out, is_invariant=True)

    whole = rows(slice(None))
    for start, stop in ((0, 1), (69, 70), (3, 10), (5, 69)):
        assert torch.equal(rows(slice(start, stop)), whole[start:stop])
    shuffled = torch.randperm(70)
    assert torch.equal(rows(shuffled), whole[shuffled])


@parametrize_pairwise(encoding=ENCODINGS, dtype=DTYPES, hidden=[1, 33, 80], group_size=[None, 16], scale=[1.0, 9.75])
def test_rows_of_a_table_equal_reference(
    encoding: Encoding, dtype: torch.dtype, hidden: int, group_size: int | None, scale: float
) -> None:
    weight = random_quantized(13, hidden, encoding=encoding, group_size=group_size)
    ids = torch.tensor([12, 0, 5, 5], dtype=torch.int32)
    actual = embedding_quantized_torch(ids, weight, dtype=dtype, scale=scale)
    assert torch.equal(actual, embedding_quantized_reference(ids, weight, dtype=dtype, scale=scale))


@pytest.mark.parametrize("wrong", [13, -1])
def test_an_id_that_is_no_row_is_refused(wrong: int) -> None:
    weight = random_quantized(13, 48, encoding="int4", group_size=16)
    with pytest.raises(IndexError):
        embedding_quantized_torch(torch.tensor([0, wrong]), weight, dtype=torch.float32)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("encoding", ENCODINGS)
@pytest.mark.parametrize("with_bias", [True, False])
def test_sum_of_experts_equals_reference(encoding: Encoding, dtype: torch.dtype, *, with_bias: bool) -> None:
    plain = random_experts(tokens=13, experts=7, experts_per_token=2, hidden=33, intermediate=48, dtype=dtype)
    layer = quantized_experts(plain, encoding=encoding, group_size=16)
    biases = plain.biases if with_bias else {"gate_up_bias": None, "down_bias": None}
    activation = choose_activation("clamped_swiglu")
    actual = fused_moe_quantized_torch(*layer.arguments, activation=activation, **biases)
    expected = fused_moe_quantized_reference(*layer.arguments, activation=activation, **biases)
    assert_within_roundings(actual, expected, 4)


def test_rows_in_fp8_keep_their_largest_number_and_their_sign() -> None:
    x = torch.tensor([[0.5, -3.0, 0.0], [0.0, 0.0, 0.0], [1e-20, -4e-20, 2e-20]])
    codes, scales = quantize_rows_fp8_reference(x)
    torch.testing.assert_close(codes.float() * scales[:, None], x, rtol=2**-4, atol=0)
    assert codes[0, 1] == -448.0
    assert scales[1] == 0.0


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("group_size", [None, 32])
def test_layer_in_fp8_differs_from_exact_rows_by_the_rounding_of_x(group_size: int | None, dtype: torch.dtype) -> None:
    weight = random_quantized(37, 96, encoding="fp8_e4m3", group_size=group_size)
    x = torch.randn(17, 96).to(dtype)
    bias = torch.randn(37).to(dtype)
    out = linear_fp8_torch(x, weight, bias, out=torch.empty(17, 37, dtype=dtype))
    assert torch.equal(out, linear_fp8_reference(x, weight, bias))
    exact = linear_quantized_reference(x, weight, bias)
    error = (out.float() - exact.float()).square().mean().sqrt()
    assert 1e-3 < error < 0.05  # roundings of 2^-4 at most, of either sign


def test_a_cpu_multiplies_no_fp8() -> None:
    assert not takes_fp8_products(torch.device("cpu"))
