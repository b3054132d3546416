"""Rows that are normalized, multiplied and routed in one launch, interpreted."""

from typing import Any
from unittest.mock import patch

import pytest
import torch
from torch import Tensor
from triton.runtime import interpreter

from infer_kernels import FusedProducts, FusedRouter, PendingNorm, Routing, apply_pending_norm, fused_moe, linear
from infer_kernels.checks.closeness import assert_within_roundings
from infer_kernels.checks.inputs.experts import random_experts
from infer_kernels.moe.fused_moe_triton import PairGrouping, group_pairs_triton
from infer_kernels.moe.router import Scoring, moe_router
from infer_kernels.norm import NormVariant
from infer_proofs.kernels.interpreted.recorded_launches import record_launches
from infer_proofs.kernels.pairwise import parametrize_pairwise

pytestmark = pytest.mark.usefixtures("triton_only")

RULES: list[tuple[Scoring, bool]] = [("softmax", True), ("softmax", False), ("softmax_of_top_k", True)]
RULE: dict[str, Any] = {"experts_per_token": 2, "scoring": "softmax", "normalize": True}
HIDDEN = 592
"""Of which three programs have parts, the last a smaller one."""


def routed(x: Tensor | PendingNorm, weight: Tensor, bias: Tensor | None = None, **rule: Any) -> Routing:
    products = FusedProducts("cpu")
    with record_launches() as recorded:
        routing = FusedRouter(products, linear).route(x, weight, bias, **rule)
    assert len(recorded) == 1
    assert not products.semaphores.any()
    return routing


def pending(rows: int, hidden: int, dtype: torch.dtype = torch.bfloat16, variant: NormVariant = "llama") -> PendingNorm:
    x, norm_weight = torch.randn(rows, hidden).to(dtype), torch.randn(hidden).to(dtype)
    squares = torch.zeros(-(-hidden // 64), 16)
    padded = torch.nn.functional.pad(x.float() ** 2, (0, -hidden % 64))
    squares[:, :rows] = padded.view(rows, -1, 64).sum(dim=2).T
    return PendingNorm(rows=x, squares=squares, weight=norm_weight, eps=1e-6, variant=variant)


def weight_of(experts: int, hidden: int, dtype: torch.dtype = torch.bfloat16) -> Tensor:
    """Return some rows of a larger weight whose others are NaN."""
    whole = torch.full((experts + 20, hidden), torch.nan, dtype=dtype)
    return whole[:experts].copy_(torch.randn(experts, hidden) * hidden**-0.5)


def whole_numbers(rows: int, experts: int, dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return x, a weight and a bias whose products are exact in any order, and the logits, rounded to equal ones."""
    x, weight = (torch.randint(-m, m + 1, (size, HIDDEN)).to(dtype) for size, m in ((rows, 100), (experts, 3)))
    weight *= torch.rand(experts, HIDDEN) < 0.05
    bias = torch.randint(-9, 10, (experts,)).to(dtype)
    return x, weight, bias, (x.double() @ weight.double().T + bias.double()).to(dtype)


def assert_groups_as_by_a_launch_of_its_own(grouping: PairGrouping | None, ids: Tensor, experts: int) -> None:
    assert grouping is not None
    expected = group_pairs_triton(ids, experts=experts, rows=16)
    assert torch.equal(grouping.pair_of_place, expected.pair_of_place)
    used = int((expected.tiles[0] >= 0).sum())
    assert torch.equal(grouping.tiles[:, :used], expected.tiles[:, :used])
    assert (grouping.tiles[0, used:] == -1).all()
    assert grouping.tiles.shape[1] == min(experts, ids.numel())


@pytest.mark.covers("configuration/use-fused-products")
@parametrize_pairwise(
    rows=[1, 3, 16],
    experts=[(1, 1), (6, 2), (8, 8), (32, 4), (40, 10), (128, 8), (256, 8), (300, 16), (512, 10)],
    rule=RULES,
    dtype=[torch.bfloat16, torch.float16],
    with_bias=[True, False],
    is_scaled=[True, False],
)
def test_choice_and_grouping_are_the_bits_of_separate_launches_where_logits_are_exact(
    rows: int,
    experts: tuple[int, int],
    rule: tuple[Scoring, bool],
    dtype: torch.dtype,
    *,
    with_bias: bool,
    is_scaled: bool,
) -> None:
    x, weight, bias, logits = whole_numbers(rows, experts[0], dtype)
    if not with_bias:
        bias, logits = None, (x.double() @ weight.double().T).to(dtype)  # type: ignore[assignment]  # it is optional
    options: dict[str, Any] = {"experts_per_token": experts[1], "scoring": rule[0], "normalize": rule[1]}
    if is_scaled:
        options["expert_scales"] = torch.randn(experts[0]).to(dtype)
    routing = routed(x, weight, bias, **options)
    expected = moe_router(logits, **options)
    assert routing.rows is x
    assert torch.equal(routing.choice.expert_ids, expected.expert_ids)
    assert torch.equal(routing.choice.expert_weights, expected.expert_weights)
    assert_groups_as_by_a_launch_of_its_own(routing.grouping, expected.expert_ids, experts[0])


@parametrize_pairwise(
    rows=[1, 5, 16],
    hidden=[16, 256, HIDDEN],
    dtype=[torch.bfloat16, torch.float16],
    variant=["llama", "gemma"],
)
def test_rows_are_normalized_and_logits_are_theirs(
    rows: int, hidden: int, dtype: torch.dtype, variant: NormVariant
) -> None:
    x, weight = pending(rows, hidden, dtype, variant), weight_of(24, hidden, dtype)
    routing = routed(x, weight, experts_per_token=3, scoring="softmax", normalize=False)
    normalized = apply_pending_norm(x)
    assert_within_roundings(routing.rows, normalized, roundings=2)
    logits = (routing.rows.double() @ weight.double().T).to(dtype)
    shares = logits.float().softmax(dim=-1).gather(1, routing.choice.expert_ids.long())
    torch.testing.assert_close(routing.choice.expert_weights, shares, rtol=2e-2, atol=1e-3)
    largest = logits.float().topk(3).values
    torch.testing.assert_close(logits.float().gather(1, routing.choice.expert_ids.long()), largest, rtol=0, atol=2e-2)


@pytest.mark.filterwarnings("ignore:invalid value")
@pytest.mark.parametrize("experts", [32, 300])
def test_a_row_has_the_same_bits_whatever_the_others_and_their_number(experts: int) -> None:
    x, weight = pending(16, HIDDEN), weight_of(experts, HIDDEN)

    def route(rows: slice) -> tuple[Tensor, ...]:
        squares = torch.zeros_like(x.squares)
        squares[:, : rows.stop - rows.start] = x.squares[:, rows]
        part = PendingNorm(rows=x.rows[rows], squares=squares, weight=x.weight, eps=x.eps, variant=x.variant)
        routing = routed(part, weight, **RULE)
        return routing.rows, *routing.choice

    whole = route(slice(0, 16))
    for rows in (slice(0, 1), slice(5, 6), slice(3, 10)):
        assert all(torch.equal(own, every[rows]) for own, every in zip(route(rows), whole, strict=True))
    x.rows[2], x.squares[:, 2] = torch.nan, torch.nan
    poisoned, others = route(slice(0, 16)), [0, 1, *range(3, 16)]
    assert all(torch.equal(own[others], every[others]) for own, every in zip(poisoned, whole, strict=True))
    assert poisoned[2][2].isnan().all()
    assert len(set(poisoned[1][2].tolist())) == 2


@pytest.mark.parametrize("first", [0, 1, 2])
def test_which_program_finishes_last_changes_no_bit(first: int) -> None:
    x, weight = pending(4, HIDDEN), weight_of(40, HIDDEN)
    expected = routed(x, weight, **RULE)
    set_index = interpreter.InterpreterBuilder.set_grid_idx

    def in_another_order(self: Any, split: int, tile: int, rest: int) -> None:
        set_index(self, (split + first) % 3, (tile + first) % 3, rest)

    with patch.object(interpreter.InterpreterBuilder, "set_grid_idx", in_another_order):
        routing = routed(x, weight, **RULE)
    assert routing.grouping is not None
    assert expected.grouping is not None
    found = routing.rows, *routing.choice, *routing.grouping
    wanted = expected.rows, *expected.choice, *expected.grouping
    assert all(torch.equal(own, other) for own, other in zip(found, wanted, strict=True))


def test_a_captured_launch_may_be_replayed_and_serves_any_routing() -> None:
    products, x, weight = FusedProducts("cpu"), torch.randn(4, HIDDEN).bfloat16(), weight_of(24, HIDDEN)
    with record_launches() as recorded:
        routing = FusedRouter(products, linear).route(x, weight, **RULE)
    for seed in range(3):
        x.copy_(torch.randn(x.shape, generator=torch.Generator().manual_seed(seed)))
        recorded.replay()
        assert not products.semaphores.any()
        expected = routed(x, weight, **RULE)
        assert torch.equal(routing.choice.expert_ids, expected.choice.expert_ids)
        assert torch.equal(routing.choice.expert_weights, expected.choice.expert_weights)
        assert_groups_as_by_a_launch_of_its_own(routing.grouping, routing.choice.expert_ids, 24)


@pytest.mark.filterwarnings("ignore:invalid value")
@pytest.mark.parametrize("value", [torch.nan, torch.inf, -torch.inf])
def test_ids_are_distinct_experts_whatever_the_logits(value: float) -> None:
    x, bias = torch.zeros(2, 16).bfloat16(), torch.full((9,), value).bfloat16()
    rule: dict[str, Any] = RULE | {"experts_per_token": 4}
    routing = routed(x, weight_of(9, 16), bias, **rule)
    assert routing.choice.expert_ids.tolist() == [[0, 1, 2, 3]] * 2
    assert routing.choice.expert_weights.isnan().all()
    assert_groups_as_by_a_launch_of_its_own(routing.grouping, routing.choice.expert_ids, 9)


def test_experts_of_a_ready_grouping_have_the_same_bits_and_take_a_launch_less() -> None:
    layer = random_experts(tokens=7, experts=6, experts_per_token=2, hidden=64, intermediate=32, dtype=torch.bfloat16)
    routing = routed(layer.x, weight_of(6, 64), **RULE)
    expected = fused_moe(layer.x, layer.gate_up, layer.down, *routing.choice, activation="silu_and_mul")
    with record_launches() as recorded:
        actual = fused_moe(
            routing.rows,
            layer.gate_up,
            layer.down,
            *routing.choice,
            activation="silu_and_mul",
            grouping=routing.grouping,
        )
    assert len(recorded) == 3
    assert torch.equal(actual, expected)
