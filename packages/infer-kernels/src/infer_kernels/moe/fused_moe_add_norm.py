"""The experts' sum, its addition to the residual stream, and the norm of the total.

    new_residual = residual + fused_moe(x, ...)
    normalized   = rms_norm(new_residual, norm_weight)

For at most 16 tokens in bf16 or fp16 on CUDA the kernel that sums over experts adds the residual and leaves the norm,
as a `PendingNorm`, to the products that read the rows. Otherwise it is `fused_moe`, then `add_rms_norm`.

Bytes moved: those of `fused_moe`, and one row more for each token; without a launch and three rows of `add_rms_norm`.

Precision: the roundings of the separate ops: the sum over experts is rounded before it is added, and the norm's mean
square is of the rounded total, in parts of 128 elements.
"""

import torch
from torch import Tensor

from infer_kernels.arguments import require_like, require_shape
from infer_kernels.dispatch import wants_grad
from infer_kernels.integers import cdiv
from infer_kernels.linear.fused_products_triton import MAX_ROWS, PendingNorm
from infer_kernels.moe.activation import ActivationName, ExpertActivation, choose_activation
from infer_kernels.moe.fused_moe import (
    ExpertsWeight,
    check_experts,
    fused_moe,
    fused_moe_reference,
    launch_experts,
    takes_expert_kernels,
)
from infer_kernels.moe.fused_moe_triton import NORMED_COLUMNS, AddedResidual, PairGrouping
from infer_kernels.norm.add_rms_norm import add_rms_norm, add_rms_norm_reference
from infer_kernels.norm.rms_norm import NormVariant, check_norm, check_variant


def fused_moe_add_norm_reference(
    x: Tensor,
    gate_up: Tensor,
    down: Tensor,
    expert_ids: Tensor,
    expert_weights: Tensor,
    *,
    activation: ActivationName | ExpertActivation,
    gate_up_bias: Tensor | None = None,
    down_bias: Tensor | None = None,
    residual: Tensor,
    norm_weight: Tensor,
    eps: float,
    variant: NormVariant = "llama",
) -> tuple[Tensor, Tensor]:
    """The formulas in plain fp32 PyTorch, all weights plain: (normalized, new_residual)."""
    added = fused_moe_reference(
        x,
        gate_up,
        down,
        expert_ids,
        expert_weights,
        activation=activation,
        gate_up_bias=gate_up_bias,
        down_bias=down_bias,
    )
    return add_rms_norm_reference(added, residual, norm_weight, eps, variant=variant)


def fused_moe_add_norm(
    x: Tensor,
    gate_up: ExpertsWeight,
    down: ExpertsWeight,
    expert_ids: Tensor,
    expert_weights: Tensor,
    *,
    activation: ActivationName | ExpertActivation,
    gate_up_bias: Tensor | None = None,
    down_bias: Tensor | None = None,
    residual: Tensor,
    norm_weight: Tensor,
    eps: float,
    variant: NormVariant = "llama",
    grouping: PairGrouping | None = None,
) -> tuple[Tensor | PendingNorm, Tensor]:
    """The experts' sum, added to the residual stream and normalized; bits may depend on the other rows.

    Args:
        x: [tokens, hidden], as all down to `down_bias` as for `fused_moe`.
        gate_up: [experts, 2 * intermediate, hidden].
        down: [experts, hidden, intermediate].
        expert_ids: [tokens, experts_per_token].
        expert_weights: [tokens, experts_per_token] fp32.
        activation: the gate between the products.
        gate_up_bias: [experts, 2 * intermediate], or None.
        down_bias: [experts, hidden], or None.
        residual: [tokens, hidden], like `x`.
        norm_weight: [hidden], of the dtype and device of `x`.
        eps: added to the mean square.
        variant: as for `rms_norm`.
        grouping: grouping of `expert_ids`, from `FusedRouter`; None: kernels that need it make it.

    Returns:
        (normalized, new_residual), [tokens, hidden] each. The norm may be pending: `FusedProducts` takes it so, and
        `apply_pending_norm` makes it a tensor.

    Raises:
        ValueError: a shape, device or stride does not fit.
        TypeError: a dtype does not fit.
    """
    numbers = choose_activation(activation)
    biases: dict[str, Tensor | None] = {"gate_up_bias": gate_up_bias, "down_bias": down_bias}
    is_one_launch_less = (
        1 <= len(x) <= MAX_ROWS
        and x.element_size() == 2
        and takes_expert_kernels(x, gate_up, down, expert_weights, **biases)
        and not wants_grad(residual, norm_weight)
    )
    if not is_one_launch_less:
        added = fused_moe(
            x,
            gate_up,
            down,
            expert_ids,
            expert_weights,
            activation=numbers,
            gate_up_bias=gate_up_bias,
            down_bias=down_bias,
            is_invariant=False,
            grouping=grouping,
        )
        return add_rms_norm(added, residual, norm_weight, eps, variant=variant)
    check_experts(x, gate_up, down, expert_ids, expert_weights, **biases)
    tokens, hidden = x.shape
    require_shape("residual", residual, (tokens, hidden), "the shape of `x`")
    require_like("residual", residual, "x", x)
    check_norm(residual, norm_weight, "norm_weight")
    check_variant(variant)
    squares = x.new_empty(cdiv(hidden, NORMED_COLUMNS), MAX_ROWS, dtype=torch.float32)
    total = launch_experts(
        x,
        gate_up,
        down,
        expert_ids,
        expert_weights,
        activation=numbers,
        **biases,
        out=x.new_empty(tokens, hidden),
        is_invariant=False,
        grouping=grouping,
        residual=AddedResidual(residual, squares),
    )
    return PendingNorm(rows=total, squares=squares, weight=norm_weight, eps=eps, variant=variant), total
