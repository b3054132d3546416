"""Mixtures of experts: the router's decision, and the chosen experts' MLPs. Knows weights; knows no model."""

from infer_kernels.moe.activation import ExpertActivation
from infer_kernels.moe.fused_moe import fused_moe, prepack_experts
from infer_kernels.moe.fused_moe_add_norm import fused_moe_add_norm
from infer_kernels.moe.fused_router import FusedRouter, Routing, SeparateRouter
from infer_kernels.moe.router import ExpertChoice, moe_router

__all__ = [
    "ExpertActivation",
    "ExpertChoice",
    "FusedRouter",
    "Routing",
    "SeparateRouter",
    "fused_moe",
    "fused_moe_add_norm",
    "moe_router",
    "prepack_experts",
]
