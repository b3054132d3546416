"""Mixtures of experts.

experts.py     the router's choice, and the experts' sum
routed.py      steps of few rows: the router between two products, and the experts' sum with its norm
launches.py    every configuration that ships
"""

from infer_kernels.checks.cases.moe.experts import moe_calls, moe_checks
from infer_kernels.checks.cases.moe.launches import moe_launches
from infer_kernels.checks.cases.moe.routed import routed_checks
from infer_kernels.checks.cases.op_cases import OpCases

__all__ = ["MOE"]

MOE = OpCases(
    ops=("moe_router", "fused_moe", "fused_router", "fused_moe_add_norm"),
    checks=lambda ops: (*moe_checks(ops), *routed_checks(ops)),
    launches=moe_launches,
    calls=moe_calls,
)
