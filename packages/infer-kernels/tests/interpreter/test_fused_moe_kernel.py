"""Pairs of tokens and experts in groups, interpreted, and launches that serve any routing."""

from typing import Any

import pytest
import torch

from infer_kernels.checks.closeness import assert_within_roundings
from infer_kernels.checks.inputs.experts import random_experts
from infer_kernels.moe import fused_moe
from infer_kernels.moe.activation import ActivationName
from infer_kernels.moe.fused_moe import fused_moe_reference
from infer_kernels.moe.fused_moe_triton import group_pairs_triton
from infer_proofs.kernels.interpreted.recorded_launches import record_launches

DTYPES = [torch.float32, torch.float16, torch.bfloat16]
ACTIVATIONS: list[ActivationName] = ["silu_and_mul", "gelu_tanh_and_mul", "clamped_swiglu"]
SMALL: dict[str, Any] = {"experts": 5, "experts_per_token": 2, "hidden": 48, "intermediate": 80}


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
