"""Experts in panels, and their captured steps: routing is read at each replay, and no row depends on another."""

from typing import Any

import pytest
import torch
from torch import Tensor

from infer_kernels import fused_moe, linear, moe_router, prepack, prepack_experts
from infer_kernels.checks.inputs.experts import random_experts
from infer_kernels.cpu import CapturedStep, PackedExperts, PackedWeight
from infer_proofs.kernels.cpu_kernels import needs_cpu_kernels

pytestmark = needs_cpu_kernels
DTYPES = [torch.float32, torch.bfloat16, torch.float16]
MAX_ROWS = 230  # more than a block of rows for each expert
SIZES: dict[str, Any] = {"experts": 4, "experts_per_token": 2, "hidden": 48, "intermediate": 40}


class Layer:
    """A router and its experts; the residual addition is left out."""

    def __init__(self, dtype: torch.dtype) -> None:
        self.drawn = random_experts(tokens=MAX_ROWS, **SIZES, dtype=dtype)
        self.router = prepack(torch.randn(SIZES["experts"], SIZES["hidden"]).to(dtype))
        self.gate_up, self.down = prepack_experts(self.drawn.gate_up), prepack_experts(self.drawn.down)

    def __call__(self, x: Tensor) -> Tensor:
        choice = moe_router(linear(x, self.router), experts_per_token=2, scoring="softmax", normalize=True)
        return fused_moe(x, self.gate_up, self.down, *choice, activation="clamped_swiglu", **self.drawn.biases)


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_replay_of_any_number_of_rows_gives_the_same_bits(dtype: torch.dtype) -> None:
    layer, x, step = Layer(dtype), torch.zeros(MAX_ROWS, SIZES["hidden"], dtype=dtype), CapturedStep(MAX_ROWS)
    with torch.inference_mode(), step.recording():
        first = layer(x)
        second = layer(first)
    for rows in (1, MAX_ROWS, 7, 0, 101):
        given = torch.randn(rows, SIZES["hidden"]).to(dtype)
        x[:rows] = given
        step.replay(rows)
        assert torch.equal(first[:rows], layer(given)), rows
        assert torch.equal(second[:rows], layer(layer(given))), rows


def test_a_replay_reads_no_routing_of_rows_that_it_has_not() -> None:
    layer, step = Layer(torch.bfloat16), CapturedStep(MAX_ROWS)
    ids, weights = layer.drawn.expert_ids.clone(), layer.drawn.expert_weights
    with step.recording():
        out = fused_moe(layer.drawn.x, layer.gate_up, layer.down, ids, weights, activation="silu_and_mul")
    ids[3:] = 2**31 - 1
    out[3:] = 7.0
    step.replay(3)
    assert out[:3].isfinite().all()
    assert (out[3:] == 7.0).all()


@pytest.mark.parametrize("dtype", DTYPES)
def test_each_expert_lies_as_a_packed_weight_does(dtype: torch.dtype) -> None:
    weight = torch.randn(3, 50, 33).to(dtype)
    packed = prepack_experts(weight)
    assert isinstance(packed, PackedExperts)
    assert (packed.dtype, packed.device, packed.out_features, packed.in_features) == (dtype, weight.device, 50, 33)
    for expert in range(3):
        alone = prepack(weight[expert])
        assert isinstance(alone, PackedWeight)
        assert torch.equal(packed.panels[expert], alone.panels)


def test_packed_and_plain_weights_are_not_mixed() -> None:
    drawn = random_experts(tokens=3, **SIZES, dtype=torch.bfloat16)
    routing = drawn.expert_ids, drawn.expert_weights
    with pytest.raises(TypeError, match="One of `gate_up` and `down` is packed"):
        fused_moe(drawn.x, prepack_experts(drawn.gate_up), drawn.down, *routing, activation="silu_and_mul")


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"x": torch.zeros(3, 47)}, ValueError, r"`gate_up` has shape \[4, 80, 48\]; pass .* 47\]"),
        ({"x": torch.zeros(3, 48).half()}, TypeError, "`gate_up` has dtype torch.float32 but `x` has torch.float16"),
        ({"down": torch.zeros(4, 48, 39)}, ValueError, r"`down` has shape \[4, 48, 39\]; pass \[4, 48"),
    ],
)
def test_packed_experts_are_checked_like_any_other(
    change: dict[str, Any], error: type[Exception], message: str
) -> None:
    drawn = random_experts(tokens=3, **SIZES, dtype=torch.float32)
    right: dict[str, Any] = {
        "x": drawn.x,
        "gate_up": drawn.gate_up,
        "down": drawn.down,
        "expert_ids": drawn.expert_ids,
        "expert_weights": drawn.expert_weights,
    }
    right |= change
    weights: dict[str, Any] = {name: prepack_experts(right.pop(name)) for name in ("gate_up", "down")}
    with pytest.raises(error, match=message):
        fused_moe(**right, **weights, activation="silu_and_mul")


@pytest.mark.usefixtures("plain_pytorch")
def test_without_kernels_weights_are_left_alone() -> None:
    weight = torch.randn(3, 8, 8)
    assert prepack_experts(weight) is weight
