"""The router's dense layer with what surrounds it: the norm before, and the choice of experts after."""

from typing import NamedTuple

from torch import Tensor

from infer_kernels.dense.fused_products import LinearFunction, apply_pending_norm
from infer_kernels.dense.fused_products_triton import PendingNorm
from infer_kernels.dense.linear import DenseWeight
from infer_kernels.moe.fused_moe_triton import PairGrouping
from infer_kernels.moe.router import ExpertChoice, Scoring, moe_router


class Routing(NamedTuple):
    """Rows and their experts.

    Attributes:
        rows: [tokens, hidden], normalized: what the experts read.
        choice: the experts of each token, and their weights.
        grouping: the pairs in order of experts, for `fused_moe`; None: its kernels make it.
    """

    rows: Tensor
    choice: ExpertChoice
    grouping: PairGrouping | None = None


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
    ) -> Routing:
        """As `FusedRouter.route`."""
        rows = apply_pending_norm(x)
        logits = self._linear(rows, weight, bias)
        choice = moe_router(logits, experts_per_token=experts_per_token, scoring=scoring, normalize=normalize)
        return Routing(rows, choice)
