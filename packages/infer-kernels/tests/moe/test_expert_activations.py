"""The activations of experts, gradients through them, and wrong arguments."""

from typing import Any

import pytest
import torch

from infer_kernels import ExpertActivation, fused_moe, gelu_tanh_and_mul, prepack_experts, silu_and_mul
from infer_kernels.checks.closeness import assert_within_roundings
from infer_kernels.checks.inputs.experts import random_experts
from infer_kernels.moe.activation import ActivationName, activate_reference, activate_torch
from infer_kernels.reference import fused_moe_reference, gelu_tanh_and_mul_reference, silu_and_mul_reference

DTYPES = [torch.float32, torch.float16, torch.bfloat16]
ACTIVATIONS: list[ActivationName] = ["silu_and_mul", "gelu_tanh_and_mul", "clamped_swiglu"]
SMALL: dict[str, Any] = {"experts": 5, "experts_per_token": 2, "hidden": 33, "intermediate": 17}


@pytest.mark.parametrize("dtype", DTYPES)
def test_the_plain_activation_is_silu_and_mul(dtype: torch.dtype) -> None:
    gate_up = torch.randn(7, 60).to(dtype)
    assert_within_roundings(activate_reference(gate_up, ExpertActivation()), silu_and_mul_reference(gate_up))
    assert_within_roundings(activate_torch(gate_up, ExpertActivation()), silu_and_mul(gate_up))


@pytest.mark.parametrize("dtype", DTYPES)
def test_gelu_is_gelu_tanh_and_mul_and_takes_limits_too(dtype: torch.dtype) -> None:
    gate_up, gelu = 4 * torch.randn(7, 60).to(dtype), ExpertActivation(function="gelu_tanh")
    assert_within_roundings(activate_reference(gate_up, gelu), gelu_tanh_and_mul_reference(gate_up))
    assert_within_roundings(activate_torch(gate_up, gelu), gelu_tanh_and_mul(gate_up))
    limited = ExpertActivation(function="gelu_tanh", limit=1.0)
    gates, ups = gate_up.chunk(2, dim=-1)
    clamped = torch.cat([gates.clamp(max=1.0), ups.clamp(-1.0, 1.0)], dim=-1)
    assert_within_roundings(activate_torch(gate_up, limited), gelu_tanh_and_mul_reference(clamped))


def test_the_clamped_activation_clamps_gates_above_and_ups_on_both_sides() -> None:
    numbers = ExpertActivation(alpha=1.702, limit=7.0, up_offset=1.0)
    gate_up = torch.tensor([[9.0, -9.0, 7.0, 9.0, -9.0, 7.0]])
    sevens = 7.0 * torch.sigmoid(torch.tensor(1.702 * 7.0))
    nines = -9.0 * torch.sigmoid(torch.tensor(1.702 * -9.0))
    expected = torch.stack((sevens * 8.0, nines * -6.0, sevens * 8.0))[None]
    torch.testing.assert_close(activate_reference(gate_up, numbers), expected)
    torch.testing.assert_close(activate_torch(gate_up, numbers), expected)


def test_gradients_equal_the_references() -> None:
    layer = random_experts(tokens=6, **SMALL, dtype=torch.float32)
    found = []
    for op in (fused_moe, fused_moe_reference):
        leaves = [
            each.clone().requires_grad_()
            for each in (layer.x, layer.gate_up, layer.down, layer.expert_weights, layer.gate_up_bias, layer.down_bias)
        ]
        x, gate_up, down, weights, gate_up_bias, down_bias = leaves
        y = op(
            x,
            gate_up,
            down,
            layer.expert_ids,
            weights,
            activation="clamped_swiglu",
            gate_up_bias=gate_up_bias,
            down_bias=down_bias,
        )
        found.append(torch.autograd.grad((y * torch.linspace(-1, 1, y.numel()).view(y.shape)).sum(), leaves))
    torch.testing.assert_close(found[0], found[1])


def test_a_weight_of_another_rank_is_not_packed() -> None:
    with pytest.raises(ValueError, match=r"`weight` has shape \[3, 4\]; pass \[experts, out_features, in_features\]"):
        prepack_experts(torch.zeros(3, 4))


@pytest.mark.parametrize(
    ("numbers", "message"), [({"alpha": 0.0}, "`alpha` is 0.0; pass"), ({"limit": -1.0}, "`limit` is -1.0; pass")]
)
def test_an_activation_with_wrong_numbers_is_refused(numbers: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        ExpertActivation(**numbers)


@pytest.mark.usefixtures("every_path")
@pytest.mark.parametrize("dtype", DTYPES)
def test_gates_may_be_given_memory_and_no_rows(dtype: torch.dtype) -> None:
    for shape in ((0, 8), (7, 96)):
        gate_up, out = torch.randn(shape[0], 2 * shape[1]).to(dtype), torch.empty(shape, dtype=dtype)
        for op in (silu_and_mul, gelu_tanh_and_mul):
            assert op(gate_up, out=out) is out
            assert torch.equal(op(gate_up), out)
