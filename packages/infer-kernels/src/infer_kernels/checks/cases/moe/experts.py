"""Mixtures of experts: the router's choice, and the experts' sum at few and at many rows of an expert."""

from collections.abc import Iterator
from functools import partial
from typing import Any

import torch

import infer_kernels
from infer_kernels import reference
from infer_kernels.checks.closeness import assert_within_roundings
from infer_kernels.checks.inputs.experts import random_experts
from infer_kernels.checks.self_check import ModelOps, MoeOps, SelfCheck, draw, product_roundings

ROWS = (1, 7, 65)
MOST_EXPERTS = 16
WIDTH, WIDTH_REMAINDER = 256, 64
"""An expert inside is this wide, and as much wider as its own width is more than a multiple of the second: a kernel's
variant depends on no more of it."""


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
    choice = infer_kernels.moe_router(
        logits.to(device), experts_per_token=moe.experts_per_token, scoring=moe.scoring, normalize=moe.normalize
    )
    right = reference.moe_router_reference(
        logits, experts_per_token=moe.experts_per_token, scoring=moe.scoring, normalize=moe.normalize
    )
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
