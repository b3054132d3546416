"""Mixtures of experts in steps of few rows: the router between two products, and the experts' sum with its norm."""

from collections.abc import Iterator
from functools import partial
from typing import Any

import torch
from torch import Tensor

import infer_kernels
from infer_kernels import reference
from infer_kernels.checks.cases.moe.experts import MOST_EXPERTS, WIDTH, WIDTH_REMAINDER
from infer_kernels.checks.cases.products import repeated_bias, repeated_weight
from infer_kernels.checks.closeness import assert_within_roundings
from infer_kernels.checks.inputs.experts import random_experts
from infer_kernels.checks.inputs.quantized_experts import quantized_experts
from infer_kernels.checks.self_check import EPS, ModelOps, MoeOps, QuantizedOps, SelfCheck, draw, product_roundings
from infer_kernels.dispatch import takes_triton
from infer_kernels.integers import cdiv
from infer_kernels.linear.fused_products import FusedProducts, apply_pending_norm
from infer_kernels.linear.fused_products_triton import MAX_ROWS, PendingNorm
from infer_kernels.linear.linear import linear
from infer_kernels.moe.fused_moe_triton import PairGrouping
from infer_kernels.moe.fused_router import FusedRouter

ROWS = (1, 7, 16)
_COLUMNS = 64
"""Columns that each sum of squares covers, as a product leaves them."""


def routed_checks(ops: ModelOps) -> Iterator[SelfCheck]:
    """Yield the checks of a model whose layers have routers behind a norm; none if it has none."""
    if ops.moe is None or ops.has_sandwich_norms or ops.has_post_norms:
        return
    for rows in ROWS:
        label = f"{rows} rows, {ops.moe.experts_per_token} of {ops.moe.experts} experts"
        yield SelfCheck(op="fused_router", label=label, run=partial(_check_router, ops, ops.moe, rows=rows))
    for form in ops.quantized or (None,):
        for rows in ROWS:
            label = f"{rows} rows of {ops.hidden_size}{'' if form is None else f', {form}'}"
            run = partial(_check_sum, ops, ops.moe, form, rows=rows)
            yield SelfCheck(op="fused_moe_add_norm", label=label, run=run)


def _check_router(ops: ModelOps, moe: MoeOps, device: torch.device, *, rows: int) -> None:
    """All numbers are whole: sums are exact in any order, so that the choice must be that of the reference.

    With an epsilon the norm's would not be, in fp32.
    """
    hidden, variant = ops.hidden_size, ops.norm or "llama"
    generator = torch.Generator().manual_seed(rows)

    def whole(*shape: int, least: int, most: int) -> Tensor:
        return torch.randint(least, most + 1, shape, generator=generator).to(ops.dtype)

    x = 2 * whole(rows, hidden, least=0, most=1) - 1  # of which each norm is 1
    norm_weight, bias = whole(hidden, least=1, most=3), whole(moe.experts, least=-9, most=9)
    weight = whole(moe.experts, hidden, least=-2, most=2)
    weight *= torch.rand(weight.shape, generator=generator) < 0.05
    squares = torch.full((cdiv(hidden, _COLUMNS), MAX_ROWS), float(_COLUMNS))
    squares[-1] -= -hidden % _COLUMNS
    pending = PendingNorm(
        rows=x.to(device), squares=squares.to(device), weight=norm_weight.to(device), eps=0.0, variant=variant
    )
    rule: dict[str, Any] = {
        "experts_per_token": moe.experts_per_token,
        "scoring": moe.scoring,
        "normalize": moe.normalize,
    }
    own_bias = bias if moe.has_biases else None
    router = FusedRouter(FusedProducts(device), linear)
    routing = router.route(pending, weight.to(device), None if own_bias is None else own_bias.to(device), **rule)
    normalized = reference.rms_norm_reference(x, norm_weight, 0.0, variant=variant)
    right = reference.fused_router_reference(normalized, weight, own_bias, **rule)
    assert_within_roundings(routing.rows.cpu(), normalized)
    assert torch.equal(routing.choice.expert_ids.cpu(), right.expert_ids), "other experts"
    assert_within_roundings(routing.choice.expert_weights.cpu(), right.expert_weights)
    if routing.grouping is not None:
        _require_grouping(routing.grouping, right.expert_ids.flatten())


def _require_grouping(grouping: PairGrouping, ids: Tensor) -> None:
    """Raise unless pairs lie in the order of experts, and each expert's places are a tile."""
    assert torch.equal(grouping.pair_of_place.cpu(), ids.argsort(stable=True).int()), "other places"
    counts = torch.bincount(ids)
    experts = counts.nonzero().flatten()
    counts = counts[experts]
    ends = counts.cumsum(dim=0)
    found = grouping.tiles.cpu()
    assert torch.equal(found[:, : len(experts)], torch.stack([experts, ends - counts, ends]).int()), "other tiles"
    assert (found[0, len(experts) :] == -1).all(), "a tile without an expert"


def _check_sum(ops: ModelOps, moe: MoeOps, form: QuantizedOps | None, device: torch.device, *, rows: int) -> None:
    hidden, variant = ops.hidden_size, ops.norm or "llama"
    layer = random_experts(
        tokens=rows,
        experts=min(moe.experts, max(MOST_EXPERTS, moe.experts_per_token)),
        experts_per_token=moe.experts_per_token,
        hidden=hidden,
        intermediate=min(moe.intermediate_size, WIDTH + moe.intermediate_size % WIDTH_REMAINDER),
        dtype=ops.dtype,
    )
    biases: dict[str, Any] = layer.biases if moe.has_biases else {}
    gate_up: Any = layer.gate_up
    down: Any = layer.down
    if form is not None:
        quantized = quantized_experts(
            layer,
            encoding=form.encoding,
            group_size=form.group_size,
            has_zeros=form.has_zeros,
            has_minimums=form.has_minimums,
        )
        gate_up, down = quantized.gate_up, quantized.down
    norm: dict[str, Any] = {
        "residual": draw(rows, hidden, dtype=ops.dtype),
        "norm_weight": draw(hidden, dtype=ops.dtype),
    }
    shared: dict[str, Any] = {"activation": moe.activation, "eps": EPS, "variant": variant}
    x = layer.x.to(device)
    own_gate_up, own_down = (
        each.to(device) if isinstance(each, Tensor) else each.map_rows(lambda tensor: tensor.to(device))
        for each in (gate_up, down)
    )
    if takes_triton(x):  # C++ kernels round inputs of packed experts, which their own check allows for
        own_gate_up, own_down = map(infer_kernels.prepack_experts, (own_gate_up, own_down))
    normalized, total = infer_kernels.fused_moe_add_norm(
        x,
        own_gate_up,
        own_down,
        layer.expert_ids.to(device),
        layer.expert_weights.to(device),
        **shared,
        **{name: each.to(device) for name, each in (biases | norm).items()},
    )
    qkv = repeated_weight(ops, (ops.q_heads + 2 * ops.kv_heads) * ops.head_dim, hidden, device)
    qkv_bias = repeated_bias(qkv) if ops.qkv_bias else None
    product = FusedProducts(device).linear(normalized, qkv.whole, None if qkv_bias is None else qkv_bias.whole)
    if form is not None:
        gate_up, down = gate_up.dequantize(), down.dequantize()
    _, expected = reference.fused_moe_add_norm_reference(
        layer.x, gate_up, down, layer.expert_ids, layer.expert_weights, **shared, **biases, **norm
    )
    roundings = product_roundings(ops.dtype, hidden)
    assert_within_roundings(total.cpu(), expected, roundings=roundings)
    rows_read = apply_pending_norm(normalized).cpu()
    following = reference.linear_reference(rows_read, qkv.part, None if qkv_bias is None else qkv_bias.part)
    assert_within_roundings(product[:, : following.shape[1]].cpu(), following, roundings=roundings)
