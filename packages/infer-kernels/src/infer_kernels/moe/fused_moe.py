"""The experts' MLPs of a mixture of experts, given the router's decision.

With e = expert_ids[t, k]:

    hidden[t, k] = act(gate_up[e] @ x[t] + gate_up_bias[e])
    y[t]         = sum over k of expert_weights[t, k] * (down[e] @ hidden[t, k] + down_bias[e])

Tokens are grouped by expert, so that a weight is read once for many of them. With `is_invariant` a row's bits do not
depend on the other rows; without it they may on CUDA, where quantized weights then take tiles that fit the batch. No
shape depends on the routing: on CUDA nothing waits for the device, and steps can be captured.

Bytes moved: chosen experts * 3 * hidden * intermediate * itemsize at few tokens; at many the products bound it.

Precision: products and their biases are summed in fp32 and rounded once to the storage dtype; the activation rounds as
`infer_kernels.moe.activation` says; the sum over k is fp32, in the order of k, and rounded once. fp32 inputs are
multiplied in full precision, not TF32.

A token with an id that no expert has is NaN, because a step that is replayed cannot raise an error.
"""

from typing import Any

import torch
from torch import Tensor

from infer_kernels.arguments import (
    require_dense_rows,
    require_device,
    require_dtype,
    require_float,
    require_integer,
    require_like,
    require_out,
    require_rank,
    require_shape,
)
from infer_kernels.cpu.packed_weight import PackedExperts, PackedQuantizedExperts
from infer_kernels.dispatch import takes_cpu_kernel, takes_triton
from infer_kernels.linear.linear_invariant import linear_invariant_torch
from infer_kernels.linear.quantized import cpu as cpu_quantized
from infer_kernels.linear.quantized.multiply import prepack_quantized
from infer_kernels.moe import cpu
from infer_kernels.moe.activation import (
    ActivationName,
    ExpertActivation,
    activate_reference,
    activate_torch,
    choose_activation,
)
from infer_kernels.moe.fused_moe_quantized import fused_moe_quantized_torch, fused_moe_quantized_triton
from infer_kernels.moe.fused_moe_triton import AddedResidual, PairGrouping, fused_moe_triton
from infer_kernels.moe.sum_experts_torch import sum_experts_torch
from infer_kernels.quantization.quantized_weight import QuantizedWeight

ExpertsWeight = Tensor | PackedExperts | QuantizedWeight | PackedQuantizedExperts
"""The weights of all experts of a mixture."""
_PACKED = (PackedExperts, PackedQuantizedExperts)


def fused_moe_reference(
    x: Tensor,
    gate_up: Tensor,
    down: Tensor,
    expert_ids: Tensor,
    expert_weights: Tensor,
    *,
    activation: ActivationName | ExpertActivation,
    gate_up_bias: Tensor | None = None,
    down_bias: Tensor | None = None,
) -> Tensor:
    """The formula, one token and one expert at a time; arguments as for `fused_moe`, all weights plain."""
    numbers, experts = choose_activation(activation), len(gate_up)

    def multiply(row: Tensor, weight: Tensor, bias: Tensor | None, expert: int) -> Tensor:
        product = weight[expert].float() @ row.float()
        return (product if bias is None else product + bias[expert].float()).to(x.dtype)

    rows = []
    for row, ids, weights in zip(x, expert_ids.tolist(), expert_weights, strict=True):
        total = torch.zeros_like(row, dtype=torch.float32)
        for expert, weight in zip(ids, weights, strict=True):
            if not 0 <= expert < experts:
                total = total + torch.nan
                continue
            hidden = activate_reference(multiply(row, gate_up, gate_up_bias, expert), numbers)
            total = total + weight * multiply(hidden, down, down_bias, expert).float()
        rows.append(total.to(x.dtype))
    return torch.stack(rows) if rows else x.new_empty(x.shape)


def fused_moe_quantized_reference(
    x: Tensor,
    gate_up: QuantizedWeight,
    down: QuantizedWeight,
    expert_ids: Tensor,
    expert_weights: Tensor,
    *,
    activation: ActivationName | ExpertActivation,
    gate_up_bias: Tensor | None = None,
    down_bias: Tensor | None = None,
) -> Tensor:
    """`fused_moe_reference` with weights dequantized in fp32."""
    return fused_moe_reference(
        x,
        gate_up.dequantize(),
        down.dequantize(),
        expert_ids,
        expert_weights,
        activation=activation,
        gate_up_bias=gate_up_bias,
        down_bias=down_bias,
    )


def fused_moe_torch(
    x: Tensor,
    gate_up: Tensor,
    down: Tensor,
    expert_ids: Tensor,
    expert_weights: Tensor,
    *,
    activation: ExpertActivation,
    gate_up_bias: Tensor | None,
    down_bias: Tensor | None,
) -> Tensor:
    """Expert by expert in plain PyTorch, in tiles of rows as `linear_invariant`; waits for the device. Unchecked.

    Differentiable.
    """

    def multiply(rows: Tensor, weight: Tensor, bias: Tensor | None, expert: int) -> Tensor:
        out = rows.new_empty(len(rows), weight.shape[1])
        return linear_invariant_torch(rows, weight[expert], None if bias is None else bias[expert], out=out)

    def compute(rows: Tensor, expert: int) -> Tensor:
        activated = activate_torch(multiply(rows, gate_up, gate_up_bias, expert), activation)
        return multiply(activated, down, down_bias, expert)

    return sum_experts_torch(x, expert_ids, expert_weights, compute, experts=len(gate_up))


def prepack_experts(weight: Tensor | QuantizedWeight) -> ExpertsWeight:
    """Return `weight` in the memory order that its device multiplies fastest; itself where that is its own order.

    Args:
        weight: [experts, out_features, in_features].

    Returns:
        The weight for `fused_moe` and for nothing else, without a gradient, unless it is `weight`.

    Raises:
        ValueError: `weight` has another rank.
    """
    if isinstance(weight, QuantizedWeight):
        require_rank("weight", weight.values, "experts, out_features, in_features")
        return prepack_quantized(weight, pack=cpu_quantized.pack_experts)
    require_rank("weight", weight, "experts, out_features, in_features")
    detached = weight.detach()
    return cpu.pack_experts(detached) if weight.numel() and takes_cpu_kernel(detached) else weight


def fused_moe(
    x: Tensor,
    gate_up: ExpertsWeight,
    down: ExpertsWeight,
    expert_ids: Tensor,
    expert_weights: Tensor,
    *,
    activation: ActivationName | ExpertActivation,
    gate_up_bias: Tensor | None = None,
    down_bias: Tensor | None = None,
    out: Tensor | None = None,
    is_invariant: bool = True,
    grouping: PairGrouping | None = None,
) -> Tensor:
    """The weighted sum of the chosen experts' MLPs for each token.

    Args:
        x: [tokens, hidden], fp32, bf16 or fp16.
        gate_up: [experts, 2 * intermediate, hidden], of the dtype and device of `x`: the gates, then the ups. May be
            quantized.
        down: [experts, hidden, intermediate], likewise. Both, or neither, come from `prepack_experts`.
        expert_ids: [tokens, experts_per_token], int32 or int64, from `moe_router`; a row with an id that no expert has
            is NaN.
        expert_weights: [tokens, experts_per_token] fp32.
        activation: "silu_and_mul", "gelu_tanh_and_mul", "clamped_swiglu" of gpt-oss, or one with other numbers.
        gate_up_bias: [experts, 2 * intermediate], or None.
        down_bias: [experts, hidden], or None.
        out: [tokens, hidden], of the dtype and device of `x`; not `x` itself.
        is_invariant: a row has the same bits whatever the other rows and their number.
        grouping: grouping of `expert_ids`, from `FusedRouter`; None: kernels that need it make it.

    Returns:
        `out`, or a fresh tensor [tokens, hidden]; differentiable where no `out` is given and weights are plain.

    Raises:
        ValueError: a shape, device or stride does not fit.
        TypeError: a dtype does not fit.
    """
    numbers = choose_activation(activation)
    biases: dict[str, Tensor | None] = {"gate_up_bias": gate_up_bias, "down_bias": down_bias}
    check_experts(x, gate_up, down, expert_ids, expert_weights, **biases)
    if out is not None:
        require_out("out", out, "x", x)
    if isinstance(gate_up, _PACKED) and isinstance(down, _PACKED):
        return cpu.fused_moe(
            x,
            gate_up,
            down,
            expert_ids,
            expert_weights,
            activation=numbers,
            **biases,
            out=out,
        )
    if takes_expert_kernels(x, gate_up, down, expert_weights, **biases):
        return launch_experts(
            x,
            gate_up,
            down,
            expert_ids,
            expert_weights,
            activation=numbers,
            gate_up_bias=gate_up_bias,
            down_bias=down_bias,
            out=x.new_empty(x.shape) if out is None else out,
            is_invariant=is_invariant,
            grouping=grouping,
        )
    if isinstance(gate_up, QuantizedWeight) and isinstance(down, QuantizedWeight):
        result = fused_moe_quantized_torch(
            x.detach(), gate_up, down, expert_ids, expert_weights, activation=numbers, **biases
        )
    else:
        assert isinstance(gate_up, Tensor)
        assert isinstance(down, Tensor)
        result = fused_moe_torch(x, gate_up, down, expert_ids, expert_weights, activation=numbers, **biases)
    return result if out is None else out.copy_(result)


def check_experts(
    x: Tensor,
    gate_up: ExpertsWeight,
    down: ExpertsWeight,
    expert_ids: Tensor,
    expert_weights: Tensor,
    *,
    gate_up_bias: Tensor | None,
    down_bias: Tensor | None,
) -> None:
    """Check the arguments of `fused_moe` that have shapes, but `out`."""
    require_rank("x", x, "tokens, hidden")
    require_float("x", x)
    require_dense_rows("x", x)
    hidden = x.shape[1]
    experts, intermediate = _require_weights(x, gate_up, down)
    _require_routing(x, expert_ids, expert_weights, experts=experts)
    for name, bias, width in (("gate_up_bias", gate_up_bias, 2 * intermediate), ("down_bias", down_bias, hidden)):
        if bias is not None:
            weight_name = name.removesuffix("_bias")
            require_shape(name, bias, (experts, width), f"as many as `{weight_name}` has outputs")
            require_like(name, bias, "x", x)
            require_dense_rows(name, bias)
    if isinstance(gate_up, _PACKED) != isinstance(down, _PACKED):
        raise TypeError("One of `gate_up` and `down` is packed; pass both from `prepack_experts`, or both plain")
    if isinstance(gate_up, QuantizedWeight) != isinstance(down, QuantizedWeight):
        raise TypeError("One of `gate_up` and `down` is quantized; pass both quantized, or both plain")


def takes_expert_kernels(
    x: Tensor,
    gate_up: ExpertsWeight,
    down: ExpertsWeight,
    expert_weights: Tensor,
    *,
    gate_up_bias: Tensor | None,
    down_bias: Tensor | None,
) -> bool:
    """Whether `fused_moe` runs its Triton kernels; quantized weights pass no gradient on."""
    if isinstance(gate_up, QuantizedWeight) and isinstance(down, QuantizedWeight):
        return gate_up.is_for_triton and down.is_for_triton and takes_triton(x.detach())
    biases = [bias for bias in (gate_up_bias, down_bias) if bias is not None]
    return (
        isinstance(gate_up, Tensor)
        and isinstance(down, Tensor)
        and takes_triton(x, gate_up, down, expert_weights, *biases)
    )


def launch_experts(
    x: Tensor,
    gate_up: ExpertsWeight,
    down: ExpertsWeight,
    expert_ids: Tensor,
    expert_weights: Tensor,
    *,
    activation: ExpertActivation,
    gate_up_bias: Tensor | None,
    down_bias: Tensor | None,
    out: Tensor,
    is_invariant: bool,
    grouping: PairGrouping | None = None,
    residual: AddedResidual | None = None,
) -> Tensor:
    """Launch the kernels of either kind of weights, where `takes_expert_kernels`; otherwise unchecked."""
    shared: dict[str, Any] = {
        "activation": activation,
        "gate_up_bias": gate_up_bias,
        "down_bias": down_bias,
        "out": out,
        "grouping": grouping,
        "residual": residual,
    }
    if isinstance(gate_up, QuantizedWeight) and isinstance(down, QuantizedWeight):
        return fused_moe_quantized_triton(
            x.detach(), gate_up, down, expert_ids, expert_weights, **shared, is_invariant=is_invariant
        )
    assert isinstance(gate_up, Tensor)
    assert isinstance(down, Tensor)
    return fused_moe_triton(x, gate_up, down, expert_ids, expert_weights, **shared)


def _require_weights(x: Tensor, gate_up: ExpertsWeight, down: ExpertsWeight) -> tuple[int, int]:
    """Check the experts' weights; return (experts, intermediate)."""
    hidden = x.shape[1]
    experts, width, inputs = _require_weight(x, "gate_up", gate_up)
    if width == 0 or width % 2 or inputs != hidden or experts == 0:
        raise ValueError(
            f"`gate_up` has shape {[experts, width, inputs]}; pass [experts, 2 * intermediate, {hidden}], as many "
            "inputs as `x` has columns"
        )
    shape, expected = _require_weight(x, "down", down), (experts, hidden, width // 2)
    if shape != expected:
        raise ValueError(
            f"`down` has shape {list(shape)}; pass {list(expected)}, the experts and half the outputs of `gate_up`"
        )
    return experts, width // 2


def _require_weight(x: Tensor, name: str, weight: ExpertsWeight) -> tuple[int, int, int]:
    """Check what does not depend on other weights; return its shape."""
    if isinstance(weight, PackedQuantizedExperts):
        return len(weight.panels), weight.out_features, weight.in_features
    if isinstance(weight, QuantizedWeight):
        require_rank(name, weight.values, "experts, out_features, in_features")
        require_device(name, weight.values, "x", x.device)
        return len(weight.values), weight.out_features, weight.in_features
    if isinstance(weight, PackedExperts):
        require_like(name, weight.panels, "x", x)
        return len(weight.panels), weight.out_features, weight.in_features
    require_rank(name, weight, "experts, out_features, in_features")
    require_like(name, weight, "x", x)
    require_dense_rows(name, weight)
    experts, out_features, in_features = weight.shape
    return experts, out_features, in_features


def _require_routing(x: Tensor, expert_ids: Tensor, expert_weights: Tensor, *, experts: int) -> None:
    require_rank("expert_ids", expert_ids, "tokens, experts_per_token")
    require_integer("expert_ids", expert_ids)
    require_device("expert_ids", expert_ids, "x", x.device)
    tokens, experts_per_token = expert_ids.shape
    if tokens != len(x) or not 1 <= experts_per_token <= experts or tokens * experts_per_token >= 2**31:
        raise ValueError(
            f"`expert_ids` has shape {list(expert_ids.shape)}; pass [{len(x)}, experts_per_token] with 1 to {experts} "
            "experts for each row of `x`"
        )
    require_shape("expert_weights", expert_weights, (tokens, experts_per_token), "one for each of `expert_ids`")
    require_dtype("expert_weights", expert_weights, torch.float32)
    require_device("expert_weights", expert_weights, "x", x.device)
