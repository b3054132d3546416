"""Mixtures of experts on a CPU: the kernels of `csrc/router.cpp` and `csrc/moe.cpp`. Unchecked."""

from typing import NamedTuple

import torch
from torch import Tensor

from infer_kernels.cpu.arguments import Arguments
from infer_kernels.cpu.calls import empty, run
from infer_kernels.cpu.huge_pages import empty_in_huge_pages
from infer_kernels.cpu.packed_weight import (
    PackedExperts,
    PackedQuantizedExperts,
    panels_shape,
)
from infer_kernels.integers import cdiv
from infer_kernels.linear.cpu import pack_into
from infer_kernels.moe.activation import ExpertActivation

BLOCK_ROWS = 96
"""Rows of a block, as in `csrc/moe.cpp`."""
_BLOCK_WORDS = 3
_ROUTER = Arguments("Router")
_GROUP = Arguments("Group")
_PRODUCTS = Arguments("Products")
_PRODUCTS_QUANTIZED = Arguments("ProductsQuantized")
_ACTIVATION = Arguments("Activation")
_SUM = Arguments("Sum")


class _Routing(NamedTuple):
    """Memory for how tokens are grouped by their experts: the struct `Routing` of `csrc/moe.h`."""

    place_of_pair: Tensor
    pair_of_place: Tensor
    sizes: Tensor
    ends: Tensor
    blocks: Tensor


def pack_experts(weight: Tensor) -> PackedExperts:
    """Return a packed copy of `weight` [experts, out_features, in_features]."""
    experts, out_features, in_features = weight.shape
    panels = empty_in_huge_pages((experts, *panels_shape(out_features, in_features, weight.dtype)), weight.dtype)
    for expert in range(experts):
        pack_into(panels[expert], weight[expert])
    return PackedExperts(panels=panels, out_features=out_features, in_features=in_features)


def router(
    logits: Tensor, *, experts_per_token: int, over_all: bool, expert_scales: Tensor | None
) -> tuple[Tensor, Tensor]:
    """Return ids and weights [tokens, experts_per_token] of the largest logits [tokens, experts]."""
    tokens, experts = logits.shape
    ids = empty((tokens, experts_per_token), torch.int32)
    weights = empty((tokens, experts_per_token), torch.float32)
    arguments = _ROUTER.pack(
        ids=ids,
        weights=weights,
        logits=logits,
        scales=expert_scales,
        experts=experts,
        chosen=experts_per_token,
        over_all=over_all,
    )
    run("router", logits.dtype, tokens, arguments, work=logits.numel())
    return ids, weights


def fused_moe(
    x: Tensor,
    gate_up: PackedExperts | PackedQuantizedExperts,
    down: PackedExperts | PackedQuantizedExperts,
    expert_ids: Tensor,
    expert_weights: Tensor,
    *,
    activation: ExpertActivation,
    gate_up_bias: Tensor | None,
    down_bias: Tensor | None,
    out: Tensor | None,
) -> Tensor:
    """Return the experts' weighted sum for x [tokens, hidden]; see `csrc/moe.cpp`."""
    (tokens, hidden), chosen, experts = x.shape, expert_ids.shape[1], len(gate_up.panels)
    pairs, width = tokens * chosen, down.in_features
    ids, weights = expert_ids.contiguous(), expert_weights.contiguous()
    most_blocks = pairs // BLOCK_ROWS + min(experts, pairs)
    sizes = (pairs, pairs, 2, experts, _BLOCK_WORDS * most_blocks)
    routing = _Routing(*(empty((size,), torch.int32) for size in sizes))
    gates_and_ups, products = empty((pairs, 2 * width), x.dtype), empty((pairs, hidden), x.dtype)
    if out is None:
        out = empty((tokens, hidden), x.dtype)

    arguments = _GROUP.pack(ids=ids, chosen=chosen, experts=experts, routing=routing)
    run("moe_group", x.dtype, tokens, arguments, work=pairs)
    _multiply(x, gate_up, gate_up_bias, gates_and_ups, tokens=tokens, chosen=chosen, routing=routing)
    arguments = _ACTIVATION.pack(
        gate_up=gates_and_ups,
        width=width,
        is_gelu=activation.function == "gelu_tanh",
        alpha=activation.alpha,
        limit=activation.limit,
        up_offset=activation.up_offset,
        routing=routing,
    )
    run("moe_activation", x.dtype, tokens, arguments, work=gates_and_ups.numel())
    _multiply(gates_and_ups, down, down_bias, products, tokens=tokens, chosen=0, routing=routing)
    arguments = _SUM.pack(out=out, products=products, weights=weights, hidden=hidden, chosen=chosen, routing=routing)
    run("moe_sum", x.dtype, tokens, arguments, work=products.numel())
    return out


def _multiply(
    x: Tensor,
    weight: PackedExperts | PackedQuantizedExperts,
    bias: Tensor | None,
    out: Tensor,
    *,
    tokens: int,
    chosen: int,
    routing: _Routing,
) -> None:
    """Multiply each place's row of `x`, which is its token's, or where `chosen` is 0 its own, into `out`."""
    panels = weight.panels
    work = cdiv(panels.numel(), len(panels)) * min(len(panels), len(out))
    operands = {"out": out, "x": x, "panels": panels, "bias": bias}
    sizes = {"outputs": weight.out_features, "chosen": chosen, "routing": routing}
    if isinstance(weight, PackedExperts):
        arguments = _PRODUCTS.pack(**operands, **sizes, inputs=weight.in_features)
        run("moe_products", x.dtype, tokens, arguments, work=work)
    else:
        arguments = _PRODUCTS_QUANTIZED.pack(**operands, **sizes, layout=weight.layout)
        run("moe_products_quantized", x.dtype, tokens, arguments, work=work)
