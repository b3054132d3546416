"""The router of a mixture of experts with what surrounds it: the norm before its product, the choice of experts after.

    rows    = rms_norm(x)
    logits  = rows @ weight.T + bias
    choice  = moe_router(logits)

`SeparateRouter` computes each part by an op of its own. `FusedRouter` does so too, but for at most 16 rows in bf16 or
fp16 on CUDA all of it is one launch, which also groups the pairs of tokens and experts, as `fused_moe` needs them.

Bytes moved: the weight's, experts * hidden * itemsize, and rows of x, once read and once written; from L2 x once for
each 16 experts, and 8 bytes for each row, expert and 256 inputs.

Precision: the roundings of the separate ops: the norm's, and logits rounded to the storage dtype. Logits are added in
fp32, in parts of 256 inputs, and mean squares in the tiles of the `PendingNorm`: so they differ from those of the
separate ops by the order of sums. Equal logits have the ids of `moe_router` and its weights, bit for bit where these
are shares of the chosen. A row's bits do not depend on the other rows, up to 16 of them.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from infer_kernels.linear.fused_products import (
    FusedProducts,
    LinearFunction,
    apply_pending_norm,
    check_product,
)
from infer_kernels.linear.fused_products_triton import PendingNorm
from infer_kernels.linear.linear import DenseWeight
from infer_kernels.linear.reference import linear_reference
from infer_kernels.moe.fused_moe_triton import PairGrouping
from infer_kernels.moe.fused_router_triton import MOST_CHOSEN, MOST_EXPERTS, MOST_INPUTS, fused_router_triton
from infer_kernels.moe.router import (
    ExpertChoice,
    Scoring,
    is_over_all,
    moe_router,
    moe_router_reference,
    require_expert_scales,
)


class Routing(NamedTuple):
    """Rows and their experts.

    Attributes:
        rows: [tokens, hidden], normalized: what the experts read.
        choice: the experts of each token, and their weights.
        grouping: the pairs in the order of experts, for `fused_moe`; None: its kernels make it.
    """

    rows: Tensor
    choice: ExpertChoice
    grouping: PairGrouping | None = None


def fused_router_reference(
    rows: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    *,
    experts_per_token: int,
    scoring: Scoring,
    normalize: bool,
    expert_scales: Tensor | None = None,
) -> ExpertChoice:
    """The product and the choice in plain fp32 PyTorch, of rows that are normalized."""
    return moe_router_reference(
        linear_reference(rows, weight, bias),
        experts_per_token=experts_per_token,
        scoring=scoring,
        normalize=normalize,
        expert_scales=expert_scales,
    )


class SeparateRouter:
    """A norm, a product and a choice, by ops of their own."""

    def __init__(self, linear: LinearFunction) -> None:
        """Multiply with `linear`."""
        self._linear = linear

    def route(
        self,
        x: Tensor | PendingNorm,
        weight: DenseWeight,
        bias: Tensor | None = None,
        *,
        experts_per_token: int,
        scoring: Scoring,
        normalize: bool,
        expert_scales: Tensor | None = None,
    ) -> Routing:
        """Do as `FusedRouter.route`; nothing is grouped."""
        rows = apply_pending_norm(x)
        choice = moe_router(
            self._linear(rows, weight, bias),
            experts_per_token=experts_per_token,
            scoring=scoring,
            normalize=normalize,
            expert_scales=expert_scales,
        )
        return Routing(rows, choice)


class FusedRouter:
    """Routes at most 16 rows in one launch; others, and those of other weights, as `SeparateRouter`.

    One launch: x in bf16 or fp16 on CUDA, a plain weight like it of at most 512 experts and 8,192 inputs, a multiple
    of 16, at most 16 experts for a row, and no gradient wanted.
    """

    def __init__(self, products: FusedProducts, linear: LinearFunction) -> None:
        """Take turns with `products` on one stream, whose semaphores serve here too; else multiply with `linear`."""
        self._products = products
        self._separate = SeparateRouter(linear)

    def route(
        self,
        x: Tensor | PendingNorm,
        weight: DenseWeight,
        bias: Tensor | None = None,
        *,
        experts_per_token: int,
        scoring: Scoring,
        normalize: bool,
        expert_scales: Tensor | None = None,
    ) -> Routing:
        """Normalize rows, and choose their experts.

        Args:
            x: [tokens, hidden].
            weight: [experts, hidden], of the dtype and device of `x`.
            bias: [experts], or None.
            experts_per_token: as for `moe_router`, like the next three.
            scoring: "softmax" over all experts, or "softmax_of_top_k" over the chosen.
            normalize: divide the weights by their sum.
            expert_scales: [experts], multiply the weights of their experts; or None.

        Returns:
            What `fused_moe` and `fused_moe_add_norm` take.

        Raises:
            ValueError: a shape, device or stride does not fit, or there is no such `scoring`.
            TypeError: a dtype does not fit.
        """
        if not self._takes(x, weight, experts_per_token):
            return self._separate.route(
                x,
                weight,
                bias,
                experts_per_token=experts_per_token,
                scoring=scoring,
                normalize=normalize,
                expert_scales=expert_scales,
            )
        assert isinstance(weight, Tensor)
        check_product(x, weight, bias)
        if expert_scales is not None:
            require_expert_scales(expert_scales, experts=len(weight), name="weight", like=weight)
        over_all = is_over_all(len(weight), experts_per_token, scoring=scoring, normalize=normalize)
        rows, choice, grouping = fused_router_triton(
            x,
            weight,
            bias,
            semaphores=self._products.semaphores,
            experts_per_token=experts_per_token,
            over_all=over_all,
            expert_scales=expert_scales,
        )
        return Routing(rows, choice, grouping)

    def _takes(self, x: Tensor | PendingNorm, weight: DenseWeight, experts_per_token: int) -> bool:
        """Whether it is one launch; if not, the separate ops also check it."""
        return (
            self._products.takes(x, weight)
            and isinstance(weight, torch.Tensor)
            and len(weight) <= MOST_EXPERTS
            and weight.shape[1] <= MOST_INPUTS
            and experts_per_token <= MOST_CHOSEN
        )
