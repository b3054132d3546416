"""Mixtures of experts on a CPU: arguments as the C++ structs of `csrc/router.cpp` and `csrc/moe.cpp`. Unchecked."""

from struct import Struct

import torch
from torch import Tensor

from infer_kernels.cpu.calls import empty, run
from infer_kernels.cpu.huge_pages import empty_in_huge_pages
from infer_kernels.cpu.packed_weight import (
    LAYOUT,
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
_ROUTER = Struct("PPPqPqqq")
_ROUTING = "PPPPP"
_GROUP = Struct("Pqqq" + _ROUTING)
_PRODUCTS = Struct("PqPqPPqqqq" + _ROUTING)
_PRODUCTS_QUANTIZED = Struct("PqPqPPqqq" + LAYOUT + _ROUTING)
_ACTIVATION = Struct("Pqqddd" + _ROUTING)
_SUM = Struct("PqPPqq" + _ROUTING)


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
        ids.data_ptr(),
        weights.data_ptr(),
        logits.data_ptr(),
        logits.stride(0),
        0 if expert_scales is None else expert_scales.data_ptr(),
        experts,
        experts_per_token,
        over_all,
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
    expert_ids = expert_ids if expert_ids.is_contiguous() else expert_ids.contiguous()
    expert_weights = expert_weights if expert_weights.is_contiguous() else expert_weights.contiguous()
    most_blocks = pairs // BLOCK_ROWS + min(experts, pairs)
    scratch = [empty((size,), torch.int32) for size in (pairs, pairs, 2, experts, _BLOCK_WORDS * most_blocks)]
    routing = [each.data_ptr() for each in scratch]
    gates_and_ups, products = empty((pairs, 2 * width), x.dtype), empty((pairs, hidden), x.dtype)
    if out is None:
        out = empty((tokens, hidden), x.dtype)

    ids = expert_ids.data_ptr(), expert_ids.element_size()
    run("moe_group", x.dtype, tokens, _GROUP.pack(*ids, chosen, experts, *routing), work=pairs)
    _multiply(x, gate_up, gate_up_bias, gates_and_ups, tokens=tokens, chosen=chosen, routing=routing)
    arguments = _ACTIVATION.pack(
        gates_and_ups.data_ptr(),
        width,
        activation.function == "gelu_tanh",
        activation.alpha,
        activation.limit,
        activation.up_offset,
        *routing,
    )
    run("moe_activation", x.dtype, tokens, arguments, work=gates_and_ups.numel())
    _multiply(gates_and_ups, down, down_bias, products, tokens=tokens, chosen=0, routing=routing)
    arguments = _SUM.pack(
        out.data_ptr(),
        out.stride(0),
        products.data_ptr(),
        expert_weights.data_ptr(),
        hidden,
        chosen,
        *routing,
    )
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
    routing: list[int],
) -> None:
    """Multiply each place's row of `x`, which is its token's, or where `chosen` is 0 its own, into `out`."""
    operands = (
        out.data_ptr(),
        out.stride(0),
        x.data_ptr(),
        x.stride(0),
        weight.panels.data_ptr(),
        0 if bias is None else bias.data_ptr(),
        0 if bias is None else bias.stride(0),
    )
    experts_met = min(len(weight.panels), len(out))
    work = cdiv(weight.panels.numel(), len(weight.panels)) * experts_met
    if isinstance(weight, PackedExperts):
        arguments = _PRODUCTS.pack(*operands, weight.in_features, weight.out_features, chosen, *routing)
        run("moe_products", x.dtype, tokens, arguments, work=work)
    else:
        arguments = _PRODUCTS_QUANTIZED.pack(*operands, weight.out_features, chosen, *weight.layout, *routing)
        run("moe_products_quantized", x.dtype, tokens, arguments, work=work)
