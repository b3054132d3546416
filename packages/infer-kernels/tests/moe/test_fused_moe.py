"""The experts' MLPs on every path: values, bits in any company, launches that serve any routing."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from infer_kernels import fused_moe, prepack_experts
from infer_kernels.checks.closeness import assert_within_roundings
from infer_kernels.checks.inputs.experts import Experts, random_experts
from infer_kernels.moe.activation import ActivationName
from infer_kernels.moe.fused_moe_triton import group_pairs_triton
from infer_kernels.reference import fused_moe_reference
from infer_proofs.kernels.interpreted.recorded_launches import record_launches
from infer_proofs.kernels.pairwise import parametrize_each_value, parametrize_pairwise
from infer_proofs.kernels.threads import torch_threads

pytestmark = pytest.mark.usefixtures("every_path")

DTYPES = [torch.float32, torch.float16, torch.bfloat16]
ACTIVATIONS: list[ActivationName] = ["silu_and_mul", "gelu_tanh_and_mul", "clamped_swiglu"]
SMALL: dict[str, Any] = {"experts": 5, "experts_per_token": 2, "hidden": 33, "intermediate": 17}


def compute(layer: Experts, *, activation: ActivationName = "silu_and_mul", **options: Any) -> Tensor:
    """The layer with its weights as the device multiplies them fastest."""
    gate_up, down = prepack_experts(layer.gate_up), prepack_experts(layer.down)
    return fused_moe(layer.x, gate_up, down, *layer.arguments[3:], activation=activation, **options)


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
    every_path: str,
    *,
    with_bias: bool,
) -> None:
    sizes = {"experts": experts[0], "experts_per_token": experts[1], "hidden": widths[0], "intermediate": widths[1]}
    # With 67 tokens an expert has more rows than a tile; C++ has blocks of 96.
    layer = random_experts(tokens=tokens * (1 if every_path == "triton" else 4), **sizes, dtype=dtype)
    biases, before = layer.biases if with_bias else {}, [each.clone() for each in layer.arguments]
    expected = fused_moe_reference(*layer.arguments, activation=activation, **biases)
    assert_within_roundings(compute(layer, activation=activation, **biases), expected, 4)
    if every_path != "triton":  # where weights are not packed
        assert_within_roundings(fused_moe(*layer.arguments, activation=activation, **biases), expected, 4)
    assert all(torch.equal(each, kept) for each, kept in zip(layer.arguments, before, strict=True))


@pytest.mark.parametrize("ids_dtype", [torch.int32, torch.int64])
def test_strided_tensors_and_out_are_taken(ids_dtype: torch.dtype) -> None:
    layer = random_experts(tokens=9, **SMALL, dtype=torch.float16)
    expected = fused_moe(*layer.arguments, activation="silu_and_mul", **layer.biases)
    wide, out = torch.full((9, 50), 3.0).half(), torch.full((9, 50), 3.0).half()
    wide[:, 8:41] = layer.x
    gate_up = torch.full((5, 40, 50), torch.nan).half()
    gate_up[:, 4:38, :33] = layer.gate_up
    down = torch.full((5, 35, 21), torch.nan).half()
    down[:, :33, 4:] = layer.down
    bias, ids = torch.full((5, 40), torch.nan).half(), torch.full((9, 5), 77, dtype=ids_dtype)
    bias[:, :34], ids[:, 1:3] = layer.gate_up_bias, layer.expert_ids
    view = out[:, 4:37]
    arguments = wide[:, 8:41], gate_up[:, 4:38, :33], down[:, :33, 4:], ids[:, 1:3], layer.expert_weights
    biases: dict[str, Any] = {"gate_up_bias": bias[:, :34], "down_bias": layer.down_bias}
    assert fused_moe(*arguments, activation="silu_and_mul", **biases, out=view) is view
    assert torch.equal(view, expected)
    assert (out[:, :4] == 3.0).all()
    assert (out[:, 37:] == 3.0).all()


@parametrize_each_value(dtype=DTYPES, threads=[1, 2, 3])
def test_a_row_has_the_same_bits_in_any_company(dtype: torch.dtype, threads: int, every_path: str) -> None:
    tokens = 40 if every_path == "triton" else 300
    layer = random_experts(tokens=tokens, experts=6, experts_per_token=2, hidden=80, intermediate=144, dtype=dtype)
    packed = prepack_experts(layer.gate_up), prepack_experts(layer.down)

    def rows(picked: Any) -> Tensor:
        ids, weights = layer.expert_ids[picked], layer.expert_weights[picked]
        return fused_moe(layer.x[picked].clone(), *packed, ids, weights, activation="silu_and_mul", **layer.biases)

    with torch_threads(threads):
        whole = rows(slice(None))
        for start, stop in ((0, 1), (tokens - 1, tokens), (3, 5), (5, tokens)):
            assert torch.equal(rows(slice(start, stop)), whole[start:stop]), (start, stop)
        shuffled = torch.randperm(tokens)
        assert torch.equal(rows(shuffled), whole[shuffled])


@parametrize_each_value(tokens=[1, 70, 95, 96, 97, 211], dtype=DTYPES)  # whole tiles or blocks of rows, and parts
def test_all_tokens_may_take_one_expert(tokens: int, dtype: torch.dtype) -> None:
    layer = random_experts(tokens=tokens, **SMALL | {"experts_per_token": 1}, dtype=dtype)
    layer = replace(layer, expert_ids=torch.full_like(layer.expert_ids, 4))
    expected = fused_moe_reference(*layer.arguments, activation="silu_and_mul")
    assert_within_roundings(compute(layer), expected, 4)


@pytest.mark.filterwarnings("ignore:invalid value")  # numpy's, of products that nobody wrote
def test_a_row_with_an_id_that_no_expert_has_is_nan_and_the_others_are_not() -> None:
    layer = random_experts(tokens=5, **SMALL, dtype=torch.float32)
    expected = compute(layer)
    layer.expert_ids[1, 0], layer.expert_ids[3, 1] = 5, -1
    actual, reference = compute(layer), fused_moe_reference(*layer.arguments, activation="silu_and_mul")
    assert actual[[1, 3]].isnan().all()
    assert reference[[1, 3]].isnan().all()
    assert torch.equal(actual[[0, 2, 4]], expected[[0, 2, 4]])
    torch.testing.assert_close(reference[[0, 2, 4]], expected[[0, 2, 4]])


@pytest.mark.usefixtures("triton_only")
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


@pytest.mark.usefixtures("triton_only")
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
