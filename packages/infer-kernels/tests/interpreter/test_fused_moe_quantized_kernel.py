"""Experts with quantized weights, interpreted: values of every encoding, and bits in any company."""

from typing import Any

import pytest
import torch
from torch import Tensor

from infer_kernels.checks.closeness import assert_within_roundings
from infer_kernels.checks.inputs.experts import random_experts
from infer_kernels.checks.inputs.quantized_experts import QuantizedExperts, quantized_experts
from infer_kernels.moe.activation import ActivationName, choose_activation
from infer_kernels.moe.fused_moe import fused_moe_quantized_reference
from infer_kernels.moe.fused_moe_quantized import fused_moe_quantized_triton
from infer_kernels.quantization import Encoding
from infer_proofs.kernels.pairwise import parametrize_each_value, parametrize_pairwise

DTYPES = [torch.float32, torch.float16, torch.bfloat16]
ENCODINGS: list[Encoding] = ["int8", "int4", "e2m1", "fp8_e4m3"]
ACTIVATIONS: list[ActivationName] = ["silu_and_mul", "gelu_tanh_and_mul", "clamped_swiglu"]


def compute(
    layer: QuantizedExperts, picked: Any = slice(None), *, activation: ActivationName, with_bias: bool = True
) -> Tensor:
    plain = layer.plain
    x = plain.x[picked]
    out = torch.full_like(x, torch.nan)
    y = fused_moe_quantized_triton(
        x,
        layer.gate_up,
        layer.down,
        plain.expert_ids[picked],
        plain.expert_weights[picked],
        activation=choose_activation(activation),
        gate_up_bias=plain.gate_up_bias if with_bias else None,
        down_bias=plain.down_bias if with_bias else None,
        out=out,
    )
    assert y is out
    return out


@parametrize_pairwise(
    encoding=ENCODINGS,
    dtype=DTYPES,
    experts=[(1, 1), (7, 2)],
    widths=[(1, 1), (33, 17), (80, 96)],
    group_size=[None, 16, 32],
    tokens=[0, 13, 67],
    activation=ACTIVATIONS,
)
def test_sum_of_experts_equals_reference(
    encoding: Encoding,
    dtype: torch.dtype,
    experts: tuple[int, int],
    widths: tuple[int, int],
    group_size: int | None,
    tokens: int,
    activation: ActivationName,
) -> None:
    with_bias = tokens != 13
    plain = random_experts(
        tokens=tokens,
        experts=experts[0],
        experts_per_token=experts[1],
        hidden=widths[0],
        intermediate=widths[1],
        dtype=dtype,
    )
    layer = quantized_experts(plain, encoding=encoding, group_size=group_size, has_zeros=encoding == "int4")
    actual = compute(layer, activation=activation, with_bias=with_bias)
    biases: dict[str, Any] = plain.biases if with_bias else {}
    expected = fused_moe_quantized_reference(*layer.arguments, activation=activation, **biases)
    assert_within_roundings(actual, expected, 4)


@parametrize_each_value(dtype=DTYPES, form=[("int8", None), ("int4", 16), ("e2m1", 32), ("fp8_e4m3", None)])
def test_rows_of_any_slice_equal_rows_of_the_whole(form: tuple[Encoding, int | None], dtype: torch.dtype) -> None:
    encoding, group_size = form
    plain = random_experts(tokens=40, experts=3, experts_per_token=2, hidden=48, intermediate=80, dtype=dtype)
    layer = quantized_experts(plain, encoding=encoding, group_size=group_size)
    whole = compute(layer, activation="silu_and_mul")
    for start, stop in ((0, 1), (39, 40), (3, 10)):
        assert torch.equal(compute(layer, slice(start, stop), activation="silu_and_mul"), whole[start:stop])
    shuffled = torch.randperm(40)
    assert torch.equal(compute(layer, shuffled, activation="silu_and_mul"), whole[shuffled])


@pytest.mark.filterwarnings("ignore:invalid value")  # numpy's, of products that nobody wrote
def test_a_row_with_an_id_that_no_expert_has_is_nan_and_the_others_are_not() -> None:
    plain = random_experts(tokens=5, experts=4, experts_per_token=2, hidden=48, intermediate=32, dtype=torch.float32)
    layer = quantized_experts(plain, encoding="int4", group_size=16)
    expected = compute(layer, activation="silu_and_mul")
    plain.expert_ids[1, 0], plain.expert_ids[3, 1] = 4, -1
    actual = compute(layer, activation="silu_and_mul")
    assert actual[[1, 3]].isnan().all()
    assert torch.equal(actual[[0, 2, 4]], expected[[0, 2, 4]])
