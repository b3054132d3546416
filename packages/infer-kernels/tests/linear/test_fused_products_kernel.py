"""Products of few rows with their norm, gate and addition in one launch, interpreted."""

from collections.abc import Callable
from typing import Any
from unittest.mock import patch

import pytest
import torch
from torch import Tensor
from triton.runtime import interpreter

from infer_kernels import FusedProducts, PendingNorm, add_rms_norm, apply_pending_norm, gelu_tanh_and_mul, silu_and_mul
from infer_kernels.checks.closeness import assert_within_roundings
from infer_kernels.norm import NormVariant
from infer_kernels.reference import gated_linear_reference, linear_add_norm_reference, linear_reference
from infer_proofs.kernels.interpreted.recorded_launches import record_launches
from infer_proofs.kernels.pairwise import parametrize_pairwise

pytestmark = pytest.mark.usefixtures("triton_only")

HALF_PRECISION = [torch.bfloat16, torch.float16]
SPLIT = 768
"""Inputs that are divided over three programs."""


def products() -> FusedProducts:
    return FusedProducts("cpu")


def semaphores(fused: FusedProducts) -> list[int]:
    [tensor] = [value for value in vars(fused).values() if isinstance(value, Tensor)]
    return tensor[tensor != 0].tolist()


def drawn(*shape: int, dtype: torch.dtype = torch.bfloat16, scale: float = 1.0) -> Tensor:
    return (torch.randn(*shape) * scale).to(dtype)


def weight_of(out_features: int, in_features: int, *, dtype: torch.dtype = torch.bfloat16) -> Tensor:
    """Return some rows of a larger weight whose others are NaN."""
    whole = torch.full((out_features + 70, in_features), float("nan"), dtype=dtype)
    weight = whole[:out_features]
    return weight.copy_(torch.randn(out_features, in_features) * in_features**-0.5)


@parametrize_pairwise(
    rows=[1, 3, 16],
    in_features=[16, 64, 592, SPLIT],
    out_features=[1, 64, 80, 130],
    dtype=HALF_PRECISION,
    activation=[None, silu_and_mul, gelu_tanh_and_mul],
    with_bias=[True, False],
)
def test_products_and_gates_are_those_of_the_reference(
    rows: int,
    in_features: int,
    out_features: int,
    dtype: torch.dtype,
    activation: Callable[[Tensor], Tensor] | None,
    *,
    with_bias: bool,
) -> None:
    fused, size = products(), out_features * (1 if activation is None else 2)
    x, weight = drawn(rows, in_features, dtype=dtype), weight_of(size, in_features, dtype=dtype)
    bias = drawn(size, dtype=dtype) if with_bias else None
    if activation is None:
        actual, expected = fused.linear(x, weight, bias), linear_reference(x, weight, bias)
    else:
        actual = fused.gated_linear(x, weight, bias, activation_and_mul=activation)
        expected = gated_linear_reference(x, weight, bias, activation_and_mul=activation)
    assert_within_roundings(actual, expected, roundings=4)
    assert semaphores(fused) == []


@pytest.mark.covers("configuration/use-fused-products")
@parametrize_pairwise(
    rows=[1, 5, 16], in_features=[48, SPLIT], hidden=[16, 64, 192], dtype=HALF_PRECISION, variant=["llama", "gemma"]
)
def test_a_sum_and_its_norm_are_those_of_the_reference(
    rows: int, in_features: int, hidden: int, dtype: torch.dtype, variant: NormVariant
) -> None:
    fused, x, residual = products(), drawn(rows, in_features, dtype=dtype), drawn(rows, hidden, dtype=dtype)
    weight, norm_weight = weight_of(hidden, in_features, dtype=dtype), drawn(hidden, dtype=dtype)
    norm: dict[str, Any] = {"residual": residual, "norm_weight": norm_weight, "eps": 1e-6, "variant": variant}
    pending, total = fused.linear_add_norm(x, weight, **norm)
    expected, expected_total = linear_add_norm_reference(x, weight, **norm)
    assert isinstance(pending, PendingNorm)
    assert_within_roundings(total, expected_total)
    assert_within_roundings(apply_pending_norm(pending), expected, roundings=6)
    following, gate_up = weight_of(96, hidden, dtype=dtype), weight_of(160, hidden, dtype=dtype)
    normalized = apply_pending_norm(pending)
    assert_within_roundings(fused.linear(pending, following), linear_reference(normalized, following))
    assert_within_roundings(
        fused.gated_linear(pending, gate_up, activation_and_mul=silu_and_mul),
        gated_linear_reference(normalized, gate_up, activation_and_mul=silu_and_mul),
        roundings=4,
    )


@pytest.mark.parametrize("variant", ["llama", "gemma"])
def test_rows_are_rounded_where_a_norm_of_its_own_rounds_them(variant: NormVariant) -> None:
    # Whole numbers: sums of squares are exact in any order, so the norm must be the same bits.
    fused, hidden = products(), 128
    residual = torch.randint(-9, 10, (3, hidden)).bfloat16()
    norm: dict[str, Any] = {"residual": residual, "norm_weight": drawn(hidden), "eps": 1e-6, "variant": variant}
    pending, total = fused.linear_add_norm(torch.zeros(3, 64).bfloat16(), weight_of(hidden, 64), **norm)
    assert torch.equal(total, residual)
    identity = torch.eye(hidden).bfloat16()
    assert torch.equal(fused.linear(pending, identity), apply_pending_norm(pending))


def test_a_product_is_rounded_before_it_is_added_to_the_residual() -> None:
    # ROCm/aiter#2586: an unrounded sum is more exact and differs from all other batch sizes', layer by layer.
    x, weight = torch.ones(1, 16).bfloat16(), torch.zeros(16, 16).bfloat16()
    weight[:, 0], weight[:, 1] = 1.0, 2.0**-8  # together between 1 and 1 + 2^-7, and rounded to 1
    residual = torch.full((1, 16), 2.0**-8).bfloat16()
    ones = torch.ones(16).bfloat16()
    _, total = products().linear_add_norm(x, weight, residual=residual, norm_weight=ones, eps=1e-6)
    assert torch.equal(total, add_rms_norm(linear_reference(x, weight), residual, ones, 1e-6)[1])
    assert torch.equal(total, torch.ones(1, 16).bfloat16())


def test_the_mean_square_is_of_the_rounded_sum() -> None:
    # vllm-project/vllm#52104: two paths with other roundings gave other tokens with and without compilation.
    x, weight = torch.full((1, 16), 1.0).half(), torch.zeros(64, 16).half()
    weight[:, 0] = 2.0**-11
    residual = torch.ones(1, 64).half()
    pending, total = products().linear_add_norm(x, weight, residual=residual, norm_weight=residual[0], eps=0.0)
    assert isinstance(pending, PendingNorm)
    assert torch.equal(total, residual)
    assert pending.squares[:, 0].tolist() == [64.0]


@pytest.mark.filterwarnings("ignore:invalid value")
def test_a_row_has_the_same_bits_whatever_the_others_and_their_number() -> None:
    fused, weight, gate_up = products(), weight_of(64, SPLIT), weight_of(128, 64)
    x, residual, norm_weight = drawn(16, SPLIT), drawn(16, 64), drawn(64)

    def layer(rows: slice) -> tuple[Tensor, Tensor]:
        pending, total = fused.linear_add_norm(
            x[rows], weight, residual=residual[rows], norm_weight=norm_weight, eps=1e-6
        )
        return total, fused.gated_linear(pending, gate_up, activation_and_mul=silu_and_mul)

    whole = layer(slice(0, 16))
    for rows in (slice(0, 1), slice(5, 6), slice(3, 10)):
        assert all(torch.equal(own, every[rows]) for own, every in zip(layer(rows), whole, strict=True))
    x[2], residual[7] = float("nan"), float("inf")
    poisoned, others = layer(slice(0, 16)), [0, 1, 3, 4, 5, 6, *range(8, 16)]
    assert all(torch.equal(own[others], every[others]) for own, every in zip(poisoned, whole, strict=True))
    assert poisoned[1][2].isnan().all()


def test_massive_activations_are_normalized_as_by_a_norm_of_its_own() -> None:
    residual = drawn(2, 64, dtype=torch.float16)
    residual[0, 3], residual[1, 5] = 60000.0, -30000.0
    norm: dict[str, Any] = {"residual": residual, "norm_weight": drawn(64, dtype=torch.float16), "eps": 1e-6}
    pending, _ = products().linear_add_norm(torch.zeros(2, 16).half(), weight_of(64, 16, dtype=torch.float16), **norm)
    identity = torch.eye(64).half()
    assert_within_roundings(products().linear(pending, identity), apply_pending_norm(pending))


@pytest.mark.parametrize("first", [0, 1, 2])
def test_which_program_finishes_last_changes_no_bit(first: int) -> None:
    fused, x, weight = products(), drawn(3, SPLIT), weight_of(64, SPLIT)
    expected = fused.linear(x, weight)
    set_index = interpreter.InterpreterBuilder.set_grid_idx

    def in_another_order(self: Any, tile: int, split: int, rest: int) -> None:
        set_index(self, tile, (split + first) % 3, rest)

    with patch.object(interpreter.InterpreterBuilder, "set_grid_idx", in_another_order):
        assert torch.equal(fused.linear(x, weight), expected)
    assert semaphores(fused) == []


def test_a_captured_product_may_be_replayed_any_number_of_times() -> None:
    # ROCm/aiter#4494: semaphores that were zeroed once, before the capture, were not zero at a replay, which hung.
    fused, x, weight, residual = products(), drawn(4, SPLIT), weight_of(128, SPLIT), drawn(4, 128)
    norm: dict[str, Any] = {"norm_weight": drawn(128), "eps": 1e-6}
    following = weight_of(SPLIT, 128)
    with record_launches() as recorded:
        pending, total = fused.linear_add_norm(x, weight, residual=residual, **norm)
        following_rows = fused.linear(pending, following)
    assert len(recorded) == 2
    for seed in range(3):
        torch.manual_seed(seed)
        x.copy_(torch.randn(x.shape))
        residual.copy_(torch.randn(residual.shape))
        recorded.replay()
        assert semaphores(fused) == []
        again, expected = products().linear_add_norm(x, weight, residual=residual, **norm)
        assert torch.equal(total, expected)
        assert torch.equal(following_rows, products().linear(again, following))


def test_rows_may_be_views_with_any_distance() -> None:
    fused, weight, memory = products(), weight_of(64, 64), drawn(4, 200)
    x, residual = memory[:, 8:72], memory[:, 100:164]
    norm: dict[str, Any] = {"norm_weight": drawn(64), "eps": 1e-6}
    _, total = fused.linear_add_norm(x, weight, residual=residual, **norm)
    expected = linear_add_norm_reference(x, weight, residual=residual, **norm)[1]
    assert_within_roundings(total, expected)
