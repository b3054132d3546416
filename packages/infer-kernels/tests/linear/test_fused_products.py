"""Which products are fused, and that all others are what ops of their own give."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from infer_kernels import FusedProducts, PendingNorm, SeparateProducts, linear, linear_invariant, silu_and_mul
from infer_kernels.checks.cases.launch_case import LaunchCase
from infer_kernels.linear.fused_products_triton import programs_per_sm
from infer_kernels.quantization import quantize_int8
from infer_proofs.kernels.compiled.ahead_of_time import launch_only
from infer_proofs.kernels.compiled.gpu_cards import CARDS
from infer_proofs.kernels.compiled.instruction_counts import count_main_loop
from infer_proofs.kernels.compiled.residency import count_resident_programs
from infer_proofs.kernels.compiled.shipped import SHIPPED_CASES, compile_launch
from infer_proofs.kernels.compiled.streamed_bits import streamed_bits

ROWS, INPUTS, HIDDEN = 16, 64, 96
NORM = torch.ones(HIDDEN).bfloat16()


def layer(products: FusedProducts | SeparateProducts, x: Tensor, weight: Any, residual: Tensor) -> Any:
    return products.linear_add_norm(x, weight, residual=residual, norm_weight=NORM.to(x.dtype), eps=1e-6)


def drawn(rows: int = ROWS, inputs: int = INPUTS, dtype: torch.dtype = torch.bfloat16) -> tuple[Tensor, Tensor, Tensor]:
    return tuple(torch.randn(shape).to(dtype) for shape in ((rows, inputs), (HIDDEN, inputs), (rows, HIDDEN)))  # type: ignore[return-value]  # three


OTHERS: dict[str, Callable[[], tuple[Tensor, Any, Tensor]]] = {
    "a row too many": lambda: drawn(rows=ROWS + 1),
    "no rows": lambda: drawn(rows=0),
    "fp32": lambda: drawn(dtype=torch.float32),
    "rows of the weight at any address": lambda: drawn(inputs=INPUTS + 1),
    "a wanted gradient": lambda: (*drawn()[:1], drawn()[1].requires_grad_(), drawn()[2]),
    "a quantized weight": lambda: (drawn()[0], quantize_int8(drawn()[1]), drawn()[2]),
}


@pytest.mark.parametrize("case", OTHERS)
def test_other_products_are_launches_of_their_own(case: str) -> None:
    arguments = OTHERS[case]()
    products = FusedProducts("cpu")
    with launch_only(90) as log:
        layer(products, *arguments)
    assert "_fused_product_kernel" not in {launch.name for launch in log.launches}
    with launch_only(90) as log, torch.inference_mode():
        normalized, _ = layer(products, *drawn())
    assert isinstance(normalized, PendingNorm)
    assert [launch.name for launch in log.launches] == ["_fused_product_kernel"]


def test_on_a_cpu_nothing_is_fused_and_bits_are_those_of_separate_ops() -> None:
    x, weight, residual = drawn()
    gates = torch.cat([weight, weight])
    fused, separate = FusedProducts("cpu"), SeparateProducts(linear)
    assert torch.equal(fused.linear(x, weight), linear(x, weight))
    gated = silu_and_mul(linear(x, gates))
    for products in (fused, separate):
        assert torch.equal(products.gated_linear(x, gates, activation_and_mul=silu_and_mul), gated)
    for own, other in zip(layer(fused, x, weight, residual), layer(separate, x, weight, residual), strict=True):
        assert torch.equal(own, other)


def test_invariant_products_are_those_of_the_invariant_layer() -> None:
    x, weight, _ = drawn()
    with launch_only(90) as log:
        SeparateProducts(linear_invariant).linear(x, weight)
    assert [launch.name for launch in log.launches] == ["_linear_invariant_kernel"]


def test_a_pending_norm_is_applied_before_products_that_cannot_take_it() -> None:
    x, weight, residual = drawn()
    gradient = torch.randn(32, HIDDEN).bfloat16().requires_grad_()
    with launch_only(90) as log:
        normalized, _ = layer(products := FusedProducts("cpu"), x, weight, residual)
        products.linear(normalized, quantize_int8(torch.randn(32, HIDDEN)))
        products.gated_linear(normalized, gradient, activation_and_mul=silu_and_mul)
    norms = [launch.name for launch in log.launches].count("_rms_norm_kernel")
    assert norms == 2


def test_a_gate_that_no_kernel_has_is_called() -> None:
    x, weight, _ = drawn()
    seen: list[Tensor] = []

    def gate(gate_up: Tensor) -> Tensor:
        seen.append(gate_up)
        return gate_up[:, ::2]

    with launch_only(90) as log:
        FusedProducts("cpu").gated_linear(x, weight, activation_and_mul=gate)
    assert [rows.shape for rows in seen] == [(ROWS, HIDDEN)]
    assert log.launches == []


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"bias": torch.zeros(5).bfloat16()}, r"`bias` has shape \[5\]; pass \[96\]"),
        ({"residual": torch.zeros(3, 5).bfloat16()}, r"`residual` has shape \[3, 5\]; pass \[16, 96\]"),
        ({"norm_weight": torch.zeros(5).bfloat16()}, r"`norm_weight` has shape \[5\]"),
        ({"variant": "olmo"}, "`variant` is 'olmo'"),
    ],
)
def test_what_does_not_fit_is_refused_before_a_launch(changed: dict[str, Any], message: str) -> None:
    x, weight, residual = drawn()
    arguments: dict[str, Any] = {"residual": residual, "norm_weight": NORM, "eps": 1e-6, **changed}
    with launch_only(90) as log, pytest.raises(ValueError, match=message):
        FusedProducts("cpu").linear_add_norm(x, weight, **arguments)
    assert log.launches == []


def test_gates_without_as_many_ups_are_refused() -> None:
    with launch_only(90), pytest.raises(ValueError, match="`weight` has 5 rows; pass the gates, then as many ups"):
        FusedProducts("cpu").gated_linear(drawn()[0], drawn()[1][:5], activation_and_mul=silu_and_mul)


PRODUCTS = [case for case in SHIPPED_CASES if case.op == "fused_products"]
HEAVIEST = ("bf16, 4096 to 6144 after a gemma norm", "bf16, 4096 to 14336 gates and ups, silu", "bf16, 2048 to 1024")


@pytest.mark.parametrize(
    ("case", "capability"),
    [
        pytest.param(
            case,
            capability,
            id=f"{case.label}, sm_{capability}",
            marks=() if capability == 90 and case.label.startswith(HEAVIEST) else pytest.mark.full,
        )
        for capability in (80, 89, 90, 120)
        for case in PRODUCTS
    ],
)
def test_nothing_but_memory_binds_a_product_and_all_wanted_programs_are_resident(
    case: LaunchCase, capability: int
) -> None:
    kernel, card = compile_launch(case.launch, capability, kernel=case.kernel), CARDS[capability]
    loop = count_main_loop(kernel, capability)
    assert loop is not None
    assert loop.bandwidth_bound(card, streamed_bits(case)) >= 0.9 * card.bandwidth
    assert count_resident_programs(kernel, capability) >= programs_per_sm(divmod(capability, 10))
