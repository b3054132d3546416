"""Mixtures of experts: the router's choice, and the experts' sum at few and at many rows of an expert."""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
from torch import Tensor

import infer_kernels
from infer_kernels import reference
from infer_kernels.checks.closeness import assert_within_roundings
from infer_kernels.checks.inputs.experts import random_experts
from infer_kernels.checks.op_call import OpCall
from infer_kernels.checks.self_check import ModelOps, MoeOps, SelfCheck, draw, product_roundings
from infer_kernels.moe.activation import ActivationName

ROWS = (1, 7, 65)
MOST_EXPERTS = 16
WIDTH, WIDTH_REMAINDER = 256, 64
"""An expert inside is this wide, and as much wider as its own width is more than a multiple of the second: a kernel's
variant depends on no more of it."""
CHOICES = ((3, 1), (32, 4), (128, 8), (512, 10))
"""Experts, and how many of them a token takes."""
LAYERS: tuple[tuple[int, int, int, ActivationName], ...] = (
    (1, 57, 20, "clamped_swiglu"),
    (33, 50, 17, "silu_and_mul"),
)
"""Odd ones: [rows, hidden, intermediate], and their activation."""


def moe_checks(ops: ModelOps) -> Iterator[SelfCheck]:
    """Yield the checks of a model's mixtures of experts; none if it has none."""
    if ops.moe is None:
        return
    for rows in ROWS:
        label = f"{rows} rows, {ops.moe.experts_per_token} of {ops.moe.experts} experts"
        yield SelfCheck(op="moe_router", label=label, run=partial(_check_router, ops.moe, ops.dtype, rows=rows))
    for rows in ROWS:
        yield SelfCheck(
            op="fused_moe",
            label=f"{rows} rows of {ops.hidden_size}",
            run=partial(_check_experts, ops.moe, ops.dtype, hidden=ops.hidden_size, rows=rows),
        )


def _check_router(moe: MoeOps, dtype: torch.dtype, device: torch.device, *, rows: int) -> None:
    logits = draw(rows, moe.experts, dtype=dtype)
    logits[0] = logits[0, 0]  # of equals the lower ids are chosen
    rule: dict[str, Any] = {
        "experts_per_token": moe.experts_per_token,
        "scoring": moe.scoring,
        "normalize": moe.normalize,
    }
    scales = draw(moe.experts, dtype=dtype) if moe.has_expert_scales else None
    choice = infer_kernels.moe_router(
        logits.to(device), **rule, expert_scales=None if scales is None else scales.to(device)
    )
    right = reference.moe_router_reference(logits, **rule, expert_scales=scales)
    assert torch.equal(choice.expert_ids.cpu(), right.expert_ids), "other experts"
    assert_within_roundings(choice.expert_weights.cpu(), right.expert_weights)


def _check_experts(moe: MoeOps, dtype: torch.dtype, device: torch.device, *, hidden: int, rows: int) -> None:
    layer = random_experts(
        tokens=rows,
        experts=min(moe.experts, max(MOST_EXPERTS, moe.experts_per_token)),
        experts_per_token=moe.experts_per_token,
        hidden=hidden,
        intermediate=min(moe.intermediate_size, WIDTH + moe.intermediate_size % WIDTH_REMAINDER),
        dtype=dtype,
    )
    biases: dict[str, Any] = layer.biases if moe.has_biases else {}
    x, gate_up, down, expert_ids, expert_weights = (each.to(device) for each in layer.arguments)
    actual = infer_kernels.fused_moe(
        x,
        infer_kernels.prepack_experts(gate_up),
        infer_kernels.prepack_experts(down),
        expert_ids,
        expert_weights,
        activation=moe.activation,
        **{name: bias.to(device) for name, bias in biases.items()},
    )
    expected = reference.fused_moe_reference(*layer.arguments, activation=moe.activation, **biases)
    assert_within_roundings(actual.cpu(), expected, roundings=product_roundings(dtype, hidden))


def moe_calls(dtype: torch.dtype) -> Iterator[OpCall]:
    """Yield routers and experts at odd shapes."""
    for experts, experts_per_token in CHOICES:
        logits = draw(9, experts, dtype=dtype)
        logits[0] = logits[0, 0]  # of equals the lower ids are chosen
        for normalize in (True, False):
            yield OpCall(
                op="moe_router",
                label=f"{dtype}, {experts_per_token} of {experts} experts{', normalized' if normalize else ''}",
                tensors=(logits,),
                options={"experts_per_token": experts_per_token, "scoring": "softmax", "normalize": normalize},
                close=partial(torch.testing.assert_close, rtol=1e-5, atol=1e-5),
            )
    for rows, hidden, intermediate, activation in LAYERS:
        layer = random_experts(
            tokens=rows, experts=6, experts_per_token=3, hidden=hidden, intermediate=intermediate, dtype=dtype
        )
        yield OpCall(
            op="fused_moe",
            label=f"{dtype}, {rows} rows of {hidden}, {intermediate} inside, {activation}",
            tensors=(*layer.arguments, layer.gate_up_bias, layer.down_bias),
            options={"activation": activation},
            call=_call_with_biases,
            close=partial(assert_within_roundings, roundings=8.0),
        )


def _call_with_biases(op: Callable[..., Any], *tensors: Tensor, activation: ActivationName) -> Any:
    *operands, gate_up_bias, down_bias = tensors
    return op(*operands, activation=activation, gate_up_bias=gate_up_bias, down_bias=down_bias)
