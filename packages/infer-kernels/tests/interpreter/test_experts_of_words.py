"""Experts whose weights `prepack_experts` rearranged, interpreted, against the reference of the weights before."""

import pytest
import torch

from infer_kernels import QuantizedWeight, fused_moe, prepack_experts
from infer_kernels.checks.inputs.quantized_weights import random_quantized
from infer_kernels.moe.fused_moe import fused_moe_quantized_reference
from infer_kernels.quantization import Encoding


@pytest.mark.parametrize(
    ("encoding", "group_size", "has_zeros"),
    [("int4", 32, True), ("int4", 32, False), ("int8", None, False), ("fp8_e4m3", 32, False)],
)
def test_experts_of_words_equal_the_reference(encoding: Encoding, group_size: int | None, *, has_zeros: bool) -> None:
    gate_up = random_quantized(3, 64, 64, encoding=encoding, group_size=group_size, has_zeros=has_zeros)
    down = random_quantized(3, 64, 32, encoding=encoding, group_size=group_size, has_zeros=has_zeros)
    first, second = prepack_experts(gate_up), prepack_experts(down)
    assert isinstance(first, QuantizedWeight)
    assert isinstance(second, QuantizedWeight)
    assert first.order == second.order == "words"
    x, ids, weights = torch.randn(5, 64).half(), torch.randint(0, 3, (5, 2)), torch.rand(5, 2)
    actual = fused_moe(x, first, second, ids, weights, activation="silu_and_mul")
    expected = fused_moe_quantized_reference(x, gate_up, down, ids, weights, activation="silu_and_mul")
    torch.testing.assert_close(actual, expected, atol=1e-2, rtol=1e-2)
