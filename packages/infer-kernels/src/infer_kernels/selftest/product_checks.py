"""Dense layers of few rows with the norm, gate and addition beside them."""

from collections.abc import Iterator
from functools import partial

import torch
from torch import Tensor

from infer_kernels.dense.fused_products import (
    FusedProducts,
    apply_pending_norm,
    gated_linear_reference,
    linear_add_norm_reference,
    linear_reference,
)
from infer_kernels.gated_activations import gelu_tanh_and_mul, silu_and_mul
from infer_kernels.selftest.check import EPS, ModelOps, SelfCheck, draw, product_roundings
from infer_kernels.testing.closeness import assert_within_roundings

ROWS = (1, 7, 16)
MAX_OUTPUTS = 384
"""So few that their inputs are divided over programs, which are joined."""
GATES = {"silu_and_mul": silu_and_mul, "gelu_tanh_and_mul": gelu_tanh_and_mul}


def product_checks(ops: ModelOps) -> Iterator[SelfCheck]:
    """Yield the checks of a model's products in steps of few rows: each as an engine on a GPU launches it."""
    for rows in ROWS:
        for in_features in dict.fromkeys((ops.q_heads * ops.head_dim, ops.intermediate_size)):
            yield SelfCheck(
                op="fused_products",
                label=f"{rows} rows, {in_features} inputs, added, normalized and gated",
                run=partial(_check_products, ops, rows=rows, in_features=in_features),
            )


def repeated_product_check(ops: ModelOps, *, times: int) -> SelfCheck:
    """Return a check that joins the same sums again and again: whichever program is the last, bits are equal."""
    run = partial(_check_repeated, ops, times=times)
    return SelfCheck(op="fused_products", label=f"{times} joins with equal bits", run=run)


def _weight(ops: ModelOps, out_features: int, in_features: int) -> Tensor:
    return (draw(out_features, in_features, dtype=torch.float32) * in_features**-0.5).to(ops.dtype)


def _check_products(ops: ModelOps, device: torch.device, *, rows: int, in_features: int) -> None:
    width, variant = min(ops.hidden_size, MAX_OUTPUTS) // 2 * 2, ops.norm or "llama"
    gate = GATES[ops.activation or "silu_and_mul"]
    x, residual = draw(rows, in_features, dtype=ops.dtype), draw(rows, width, dtype=ops.dtype)
    weight, following = _weight(ops, width, in_features), _weight(ops, width, width)
    norm_weight = draw(width, dtype=ops.dtype)
    products = FusedProducts(device)
    pending, total = products.linear_add_norm(
        x.to(device),
        weight.to(device),
        residual=residual.to(device),
        norm_weight=norm_weight.to(device),
        eps=EPS,
        variant=variant,
    )
    _, expected = linear_add_norm_reference(
        x, weight, residual=residual, norm_weight=norm_weight, eps=EPS, variant=variant
    )
    assert_within_roundings(total.cpu(), expected, roundings=product_roundings(ops.dtype, in_features))
    normalized, moved = apply_pending_norm(pending).cpu(), following.to(device)
    for actual, right in (
        (products.linear(pending, moved), linear_reference(normalized, following)),
        (
            products.gated_linear(pending, moved, activation_and_mul=gate),
            gated_linear_reference(normalized, following, activation_and_mul=gate),
        ),
    ):
        assert_within_roundings(actual.cpu(), right, roundings=product_roundings(ops.dtype, width))


def _check_repeated(ops: ModelOps, device: torch.device, *, times: int) -> None:
    in_features = ops.intermediate_size
    x, weight = draw(7, in_features, dtype=ops.dtype).to(device), _weight(ops, MAX_OUTPUTS, in_features).to(device)
    products = FusedProducts(device)
    first = products.linear(x, weight)
    is_other = torch.zeros((), dtype=torch.bool, device=device)
    for _ in range(times):
        is_other |= (products.linear(x, weight) != first).any()
    assert not is_other, "other bits"
