"""The experts' MLPs, interpreted: values, bits in any company, and launches that serve any routing."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from infer_kernels.checks.closeness import assert_within_roundings
from infer_kernels.checks.inputs.experts import random_experts
from infer_kernels.checks.interpreted.recorded_launches import record_launches
from infer_kernels.checks.pairwise import parametrize_pairwise
from infer_kernels.moe import fused_moe
from infer_kernels.moe.activation import ActivationName
from infer_kernels.moe.fused_moe import fused_moe_reference
from infer_kernels.moe.fused_moe_triton import group_pairs_triton

DTYPES = [torch.float32, torch.float16, torch.bfloat16]
ACTIVATIONS: list[ActivationName] = ["silu_and_mul", "clamped_swiglu"]
SMALL: dict[str, Any] = {"experts": 5, "experts_per_token": 2, "hidden": 48, "intermediate": 80}


@parametrize_pairwise(
    dtype=DTYPES,
    experts=[(1, 1), (5, 5), (7, 2), (40, 4)],
    widths=[(1, 1), (16, 32), (33, 17), (144, 16), (80, 96)],
    tokens=[0, 1, 13, 67],
    activation=ACTIVATIONS,
    with_bias=[True, False],
)
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
    actual = fused_moe(*layer.arguments, activation=activation, **biases)
    assert_within_roundings(actual, fused_moe_reference(*layer.arguments, activation=activation, **biases), 4)


@pytest.mark.parametrize("dtype", DTYPES)
def test_rows_of_any_slice_equal_rows_of_the_whole(dtype: torch.dtype) -> None:
    layer = random_experts(tokens=150, **SMALL, dtype=dtype)

    def rows(picked: Any) -> Tensor:
        ids, weights = layer.expert_ids[picked], layer.expert_weights[picked]
        weight = layer.gate_up, layer.down
        return fused_moe(layer.x[picked], *weight, ids, weights, activation="silu_and_mul", **layer.biases)

    whole = rows(slice(None))
    for start, stop in ((0, 1), (149, 150), (3, 10), (5, 149)):
        assert torch.equal(rows(slice(start, stop)), whole[start:stop])
    shuffled = torch.randperm(150)
    assert torch.equal(rows(shuffled), whole[shuffled])


@pytest.mark.parametrize("ids_dtype", [torch.int32, torch.int64])
def test_strided_tensors_and_out_are_taken(ids_dtype: torch.dtype) -> None:
    layer = random_experts(tokens=9, **SMALL, dtype=torch.float16)
    expected = fused_moe(*layer.arguments, activation="silu_and_mul", **layer.biases)
    wide, out = torch.full((9, 80), 3.0).half(), torch.full((9, 80), 3.0).half()
    wide[:, 16:64] = layer.x
    gate_up = torch.full((5, 170, 64), torch.nan).half()
    gate_up[:, 4:164, :48] = layer.gate_up
    down = torch.full((5, 50, 96), torch.nan).half()
    down[:, :48, 16:] = layer.down
    bias = torch.full((5, 170), torch.nan).half()
    bias[:, :160] = layer.gate_up_bias
    view = out[:, 8:56]
    arguments = wide[:, 16:64], gate_up[:, 4:164, :48], down[:, :48, 16:], layer.expert_ids.to(ids_dtype)
    biases: dict[str, Any] = {"gate_up_bias": bias[:, :160], "down_bias": layer.down_bias}
    y = fused_moe(*arguments, layer.expert_weights, activation="silu_and_mul", **biases, out=view)
    assert y is view
    assert torch.equal(view, expected)
    assert (out[:, :8] == 3.0).all()
    assert (out[:, 56:] == 3.0).all()


@pytest.mark.parametrize("tokens", [1, 70, 1100])
def test_all_tokens_may_take_one_expert(tokens: int) -> None:
    layer = random_experts(tokens=tokens, **SMALL | {"experts_per_token": 1}, dtype=torch.float32)
    layer = replace(layer, expert_ids=torch.full_like(layer.expert_ids, 3))
    actual = fused_moe(*layer.arguments, activation="silu_and_mul")
    assert_within_roundings(actual, fused_moe_reference(*layer.arguments, activation="silu_and_mul"), 4)


@pytest.mark.parametrize("ids_dtype", [torch.int32, torch.int64])
@pytest.mark.parametrize("tokens", [1, 15, 16, 17, 512, 513])
def test_every_pair_has_its_place_and_every_place_its_tile(tokens: int, ids_dtype: torch.dtype) -> None:
    # 1,024 pairs are grouped by one launch, more by two. Ids that no expert has, of any size, have no place.
    ids = torch.randint(0, 7, (tokens, 2), generator=torch.Generator().manual_seed(tokens)).to(ids_dtype)
    ids[::5, 1] = 2**32 + 3 if ids_dtype == torch.int64 else -1
    flat = ids.flatten()
    pair_of_place, tiles = group_pairs_triton(ids, experts=7, rows=16)
    ends = dict[int, int]()
    for expert, first, end in tiles.T.tolist():
        if expert >= 0:
            assert first == ends.get(expert, first)
            ends[expert] = min(first + 16, end)
            assert (flat[pair_of_place[first : ends[expert]].long()] == expert).all()
    owned = [pair for pair in range(2 * tokens) if 0 <= int(flat[pair]) < 7]
    assert sorted(pair_of_place[: len(owned)].tolist()) == owned
    assert max(ends.values()) == len(owned)


@pytest.mark.parametrize(("tokens", "launches"), [(80, 4), pytest.param(520, 5, marks=pytest.mark.full)])
def test_launches_serve_whatever_routing_lies_there_by_then(tokens: int, launches: int) -> None:
    layer = random_experts(tokens=tokens, **SMALL, dtype=torch.float32)
    out = torch.empty_like(layer.x)
    with record_launches() as recorded:
        fused_moe(*layer.arguments, activation="silu_and_mul", **layer.biases, out=out)
    assert len(recorded) == launches
    for seed in (1, 2):
        other = random_experts(tokens=tokens, **SMALL, dtype=torch.float32, seed=seed)
        ids = other.expert_ids if seed == 1 else torch.tensor([[4, 1]]).expand(tokens, 2)
        layer.x.copy_(other.x)
        layer.expert_ids.copy_(ids)
        layer.expert_weights.copy_(other.expert_weights)
        recorded.replay()
        assert torch.equal(out, fused_moe(*layer.arguments, activation="silu_and_mul", **layer.biases))
        expected = fused_moe_reference(*layer.arguments, activation="silu_and_mul", **layer.biases)
        assert_within_roundings(out, expected, 4)


@pytest.mark.filterwarnings("ignore:invalid value")  # numpy's, of products that nobody wrote
def test_a_row_with_an_id_that_no_expert_has_is_nan_and_the_others_are_not() -> None:
    layer = random_experts(tokens=5, **SMALL, dtype=torch.float32)
    expected = fused_moe(*layer.arguments, activation="silu_and_mul")
    layer.expert_ids[1, 0], layer.expert_ids[3, 1] = 5, -1
    actual = fused_moe(*layer.arguments, activation="silu_and_mul")
    assert actual[[1, 3]].isnan().all()
    assert torch.equal(actual[[0, 2, 4]], expected[[0, 2, 4]])
