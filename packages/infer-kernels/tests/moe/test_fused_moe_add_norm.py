"""The experts' sum with the residual stream and its pending norm, interpreted."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from infer_kernels import FusedProducts, PendingNorm, add_rms_norm, apply_pending_norm, fused_moe, fused_moe_add_norm
from infer_kernels.checks.closeness import assert_within_roundings
from infer_kernels.checks.inputs.experts import Experts, random_experts
from infer_kernels.moe.activation import ActivationName
from infer_kernels.moe.fused_moe_triton import NORMED_COLUMNS
from infer_kernels.norm import NormVariant
from infer_kernels.quantization import quantize_int8
from infer_kernels.reference import fused_moe_add_norm_reference, linear_reference
from infer_proofs.kernels.interpreted.recorded_launches import record_launches
from infer_proofs.kernels.pairwise import parametrize_pairwise

pytestmark = pytest.mark.usefixtures("triton_only")

HALF_PRECISION = [torch.bfloat16, torch.float16]
ACTIVATION: ActivationName = "silu_and_mul"


def layer_of(tokens: int, hidden: int, dtype: torch.dtype = torch.bfloat16, *, experts: int = 5, k: int = 2) -> Experts:
    return random_experts(
        tokens=tokens, experts=experts, experts_per_token=k, hidden=hidden, intermediate=32, dtype=dtype
    )


def norm_of(layer: Experts, variant: NormVariant = "llama") -> dict[str, Any]:
    (tokens, hidden), dtype = layer.x.shape, layer.x.dtype
    residual, norm_weight = torch.randn(tokens, hidden).to(dtype), torch.randn(hidden).to(dtype)
    return {"residual": residual, "norm_weight": norm_weight, "eps": 1e-6, "variant": variant}


@pytest.mark.covers("configuration/use-fused-products")
@parametrize_pairwise(
    tokens=[1, 5, 16],
    hidden=[16, 128, 144, 592],
    experts=[(1, 1), (5, 3), (12, 8)],
    dtype=HALF_PRECISION,
    variant=["llama", "gemma"],
    with_bias=[True, False],
)
def test_total_and_norm_are_those_of_the_separate_ops_and_of_the_reference(
    tokens: int, hidden: int, experts: tuple[int, int], dtype: torch.dtype, variant: NormVariant, *, with_bias: bool
) -> None:
    layer = layer_of(tokens, hidden, dtype, experts=experts[0], k=experts[1])
    norm = norm_of(layer, variant)
    biases: dict[str, Any] = layer.biases if with_bias else {}
    pending, total = fused_moe_add_norm(*layer.arguments, activation=ACTIVATION, **biases | norm)
    assert isinstance(pending, PendingNorm)
    added = fused_moe(*layer.arguments, activation=ACTIVATION, **biases)
    normalized, separate = add_rms_norm(added, norm["residual"], norm["norm_weight"], 1e-6, variant=variant)
    assert torch.equal(total, separate)
    assert torch.equal(apply_pending_norm(pending), normalized)
    expected, expected_total = fused_moe_add_norm_reference(*layer.arguments, activation=ACTIVATION, **biases | norm)
    assert_within_roundings(total, expected_total, roundings=4)
    assert_within_roundings(apply_pending_norm(pending), expected, roundings=8)
    whole = torch.zeros(hidden + -hidden % NORMED_COLUMNS, tokens)
    whole[:hidden] = total.float().T ** 2
    tiles = whole.view(-1, NORMED_COLUMNS, tokens).sum(dim=1)
    torch.testing.assert_close(pending.squares[:, :tokens], tiles)
    assert not pending.squares[:, tokens:].any()
    following = (torch.randn(64, hidden) * hidden**-0.5).to(dtype)
    product = FusedProducts("cpu").linear(pending, following)
    assert_within_roundings(product, linear_reference(apply_pending_norm(pending), following))


def test_the_sum_over_experts_is_rounded_before_it_is_added() -> None:
    layer = layer_of(1, 16, k=2)
    layer = replace(layer, expert_weights=torch.tensor([[1.0, 1.0]]))
    layer.down.zero_()
    first, second = layer.expert_ids[0].tolist()
    layer.down_bias[first] = 1.0
    layer.down_bias[second] = 2.0**-8  # together between 1 and 1 + 2^-7, and rounded to 1
    ones = torch.ones(1, 16).bfloat16()
    norm: dict[str, Any] = {"residual": ones * 2.0**-8, "norm_weight": ones[0], "eps": 1e-6}
    _, total = fused_moe_add_norm(*layer.arguments, activation=ACTIVATION, **layer.biases | norm)
    assert torch.equal(total, ones)


@pytest.mark.filterwarnings("ignore:invalid value")
def test_a_row_has_the_same_bits_whatever_the_others_and_their_number() -> None:
    layer = layer_of(16, 144)
    norm = norm_of(layer)
    following = torch.randn(64, 144).bfloat16()

    def compute(rows: slice) -> tuple[Tensor, Tensor]:
        ids, weights = layer.expert_ids[rows], layer.expert_weights[rows]
        residual = norm["residual"][rows]
        pending, total = fused_moe_add_norm(
            layer.x[rows],
            layer.gate_up,
            layer.down,
            ids,
            weights,
            activation=ACTIVATION,
            **norm | {"residual": residual},
        )
        return total, FusedProducts("cpu").linear(pending, following)

    whole = compute(slice(0, 16))
    for rows in (slice(0, 1), slice(5, 6), slice(3, 10)):
        assert all(torch.equal(own, every[rows]) for own, every in zip(compute(rows), whole, strict=True))
    layer.x[2], norm["residual"][7] = float("nan"), float("inf")
    poisoned, others = compute(slice(0, 16)), [0, 1, 3, 4, 5, 6, *range(8, 16)]
    assert all(torch.equal(own[others], every[others]) for own, every in zip(poisoned, whole, strict=True))
    assert poisoned[1][[2, 7]].isnan().any(dim=1).all()


def test_parts_of_divided_experts_are_added_and_normalized_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("infer_kernels.moe.fused_moe_quantized._LEAST_INNER", 64)
    layer = random_experts(tokens=2, experts=4, experts_per_token=2, hidden=64, intermediate=320, dtype=torch.float16)
    gate_up, down = quantize_int8(layer.gate_up), quantize_int8(layer.down)
    arguments, norm = (layer.x, gate_up, down, layer.expert_ids, layer.expert_weights), norm_of(layer)
    pending, total = fused_moe_add_norm(*arguments, activation=ACTIVATION, **layer.biases | norm)
    added = fused_moe(*arguments, activation=ACTIVATION, **layer.biases, is_invariant=False)
    normalized, separate = add_rms_norm(added, norm["residual"], norm["norm_weight"], 1e-6)
    assert torch.equal(total, separate)
    assert torch.equal(apply_pending_norm(pending), normalized)


def test_it_takes_a_launch_less_than_the_separate_ops_and_serves_any_routing() -> None:
    layer = layer_of(4, 144)
    norm = norm_of(layer)
    with record_launches() as recorded:
        pending, total = fused_moe_add_norm(*layer.arguments, activation=ACTIVATION, **norm)
    assert len(recorded) == 4
    assert isinstance(pending, PendingNorm)
    for seed in (1, 2):
        other = random_experts(
            tokens=4, experts=5, experts_per_token=2, hidden=144, intermediate=32, dtype=torch.bfloat16, seed=seed
        )
        for own, drawn in ((layer.x, other.x), (layer.expert_ids, other.expert_ids)):
            own.copy_(drawn)
        pending.squares.fill_(torch.nan)
        recorded.replay()
        again, expected = fused_moe_add_norm(*layer.arguments, activation=ACTIVATION, **norm)
        assert isinstance(again, PendingNorm)
        assert torch.equal(total, expected)
        assert torch.equal(pending.squares, again.squares)


@pytest.mark.parametrize(("tokens", "dtype"), [(17, torch.bfloat16), (3, torch.float32), (0, torch.bfloat16)])
def test_other_rows_are_summed_and_normalized_by_separate_ops(tokens: int, dtype: torch.dtype) -> None:
    layer = layer_of(tokens, 64, dtype)
    norm = norm_of(layer)
    normalized, total = fused_moe_add_norm(*layer.arguments, activation=ACTIVATION, **norm)
    expected = add_rms_norm(
        fused_moe(*layer.arguments, activation=ACTIVATION), norm["residual"], norm["norm_weight"], 1e-6
    )
    assert torch.equal(torch.cat([normalized, total]), torch.cat(expected))  # type: ignore[list-item]  # no pending norm


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"residual": torch.zeros(3, 5).bfloat16()}, r"`residual` has shape \[3, 5\]; pass \[4, 64\]"),
        ({"norm_weight": torch.zeros(5).bfloat16()}, r"`norm_weight` has shape \[5\]"),
        ({"variant": "olmo"}, "`variant` is 'olmo'"),
    ],
)
def test_what_does_not_fit_is_refused_before_a_launch(changed: dict[str, Any], message: str) -> None:
    layer = layer_of(4, 64)
    with record_launches() as recorded, pytest.raises(ValueError, match=message):
        fused_moe_add_norm(*layer.arguments, activation=ACTIVATION, **norm_of(layer) | changed)
    assert len(recorded) == 0
