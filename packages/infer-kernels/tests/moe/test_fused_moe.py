"""The experts' MLPs, on the paths of a CPU."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from infer_kernels import SwiGLU, fused_moe, prepack_experts, silu_and_mul
from infer_kernels.checks.closeness import assert_within_roundings
from infer_kernels.checks.inputs.experts import Experts, random_experts
from infer_kernels.checks.pairwise import parametrize_pairwise
from infer_kernels.checks.threads import torch_threads
from infer_kernels.moe.activation import ActivationName, activate_reference, activate_torch
from infer_kernels.reference import fused_moe_reference, silu_and_mul_reference

DTYPES = [torch.float32, torch.float16, torch.bfloat16]
ACTIVATIONS: list[ActivationName] = ["silu_and_mul", "clamped_swiglu"]
SMALL: dict[str, Any] = {"experts": 5, "experts_per_token": 2, "hidden": 33, "intermediate": 17}


def compute(layer: Experts, *, activation: ActivationName = "silu_and_mul", **options: Any) -> Tensor:
    """The layer with its weights as the device multiplies them fastest."""
    gate_up, down = prepack_experts(layer.gate_up), prepack_experts(layer.down)
    return fused_moe(layer.x, gate_up, down, *layer.arguments[3:], activation=activation, **options)


@parametrize_pairwise(
    dtype=DTYPES,
    experts=[(1, 1), (5, 5), (7, 2), (40, 4)],
    widths=[(1, 1), (16, 32), (33, 17), (37, 50), (96, 64)],
    tokens=[0, 1, 2, 13, 97, 260],
    activation=ACTIVATIONS,
    with_bias=[True, False],
)
@pytest.mark.usefixtures("cpu_path")
def test_sum_of_experts_equals_reference(
    tokens: int,
    experts: tuple[int, int],
    widths: tuple[int, int],
    dtype: torch.dtype,
    activation: ActivationName,
    *,
    with_bias: bool,
) -> None:
    layer = random_experts(
        tokens=tokens,
        experts=experts[0],
        experts_per_token=experts[1],
        hidden=widths[0],
        intermediate=widths[1],
        dtype=dtype,
    )
    biases = layer.biases if with_bias else {}
    expected = fused_moe_reference(*layer.arguments, activation=activation, **biases)
    assert_within_roundings(compute(layer, activation=activation, **biases), expected, 4)
    assert_within_roundings(fused_moe(*layer.arguments, activation=activation, **biases), expected, 4)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("ids_dtype", [torch.int32, torch.int64])
@pytest.mark.usefixtures("cpu_path")
def test_out_and_strided_rows_are_taken(dtype: torch.dtype, ids_dtype: torch.dtype) -> None:
    layer = random_experts(tokens=9, **SMALL, dtype=dtype)
    expected = compute(layer)
    wide, out = torch.full((9, 50), 3.0, dtype=dtype), torch.full((9, 50), 3.0, dtype=dtype)
    wide[:, 8:41] = layer.x
    wide_ids = torch.full((9, 5), 77, dtype=ids_dtype)
    wide_ids[:, 1:3] = layer.expert_ids
    strided = replace(layer, x=wide[:, 8:41], expert_ids=wide_ids[:, 1:3])
    assert torch.equal(compute(strided), expected)
    view = out[:, 4:37]
    assert compute(strided, out=view) is view
    assert torch.equal(view, expected)
    assert (out[:, :4] == 3.0).all()
    assert (out[:, 37:] == 3.0).all()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("threads", [1, 2, 3])
@pytest.mark.usefixtures("cpu_path")
def test_a_row_has_the_same_bits_in_any_company(dtype: torch.dtype, threads: int) -> None:
    layer = random_experts(tokens=300, experts=6, experts_per_token=2, hidden=80, intermediate=144, dtype=dtype)
    packed = prepack_experts(layer.gate_up), prepack_experts(layer.down)

    def rows(picked: Any) -> Tensor:
        ids, weights = layer.expert_ids[picked], layer.expert_weights[picked]
        return fused_moe(layer.x[picked].clone(), *packed, ids, weights, activation="silu_and_mul", **layer.biases)

    with torch_threads(threads):
        whole = rows(slice(None))
        for start, stop in ((0, 1), (299, 300), (3, 5), (10, 47), (0, 255), (5, 300)):
            assert torch.equal(rows(slice(start, stop)), whole[start:stop]), (start, stop)
        shuffled = torch.randperm(300)
        assert torch.equal(rows(shuffled), whole[shuffled])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("tokens", [95, 96, 97, 192, 211])  # whole blocks of rows, and parts of one
@pytest.mark.usefixtures("cpu_path")
def test_all_tokens_may_take_one_expert(tokens: int, dtype: torch.dtype) -> None:
    layer = random_experts(tokens=tokens, **SMALL | {"experts_per_token": 1}, dtype=dtype)
    layer = replace(layer, expert_ids=torch.full_like(layer.expert_ids, 4))
    expected = fused_moe_reference(*layer.arguments, activation="silu_and_mul")
    assert_within_roundings(compute(layer), expected, 4)


@pytest.mark.usefixtures("cpu_path")
def test_a_row_with_an_id_that_no_expert_has_is_nan_and_the_others_are_not() -> None:
    layer = random_experts(tokens=5, **SMALL, dtype=torch.float32)
    expected = compute(layer)
    layer.expert_ids[1, 0], layer.expert_ids[3, 1] = 5, -1
    for actual in (compute(layer), fused_moe_reference(*layer.arguments, activation="silu_and_mul")):
        assert actual[[1, 3]].isnan().all()
        torch.testing.assert_close(actual[[0, 2, 4]], expected[[0, 2, 4]])


@pytest.mark.usefixtures("cpu_path")
def test_nothing_but_out_is_changed() -> None:
    layer = random_experts(tokens=5, **SMALL, dtype=torch.bfloat16)
    before = [each.clone() for each in layer.arguments]
    compute(layer)
    assert all(torch.equal(each, kept) for each, kept in zip(layer.arguments, before, strict=True))


@pytest.mark.parametrize("dtype", DTYPES)
def test_the_plain_activation_is_silu_and_mul(dtype: torch.dtype) -> None:
    gate_up = torch.randn(7, 60).to(dtype)
    assert_within_roundings(activate_reference(gate_up, SwiGLU()), silu_and_mul_reference(gate_up))
    assert_within_roundings(activate_torch(gate_up, SwiGLU()), silu_and_mul(gate_up))


def test_the_clamped_activation_clamps_gates_above_and_ups_on_both_sides() -> None:
    numbers = SwiGLU(alpha=1.702, limit=7.0, up_offset=1.0)
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
def test_an_activation_with_wrong_numbers_is_refused(numbers: dict[str, float], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        SwiGLU(**numbers)
