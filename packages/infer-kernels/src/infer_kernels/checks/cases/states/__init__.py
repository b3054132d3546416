"""Layers with states.

calls.py       convolutions, the delta rule, and the norm and gates around them
launches.py    every configuration that ships
"""

from infer_kernels.checks.cases.op_cases import OpCases
from infer_kernels.checks.cases.states.calls import misaligned_state_checks, state_calls, state_checks
from infer_kernels.checks.cases.states.launches import state_launches

__all__ = ["STATES"]

STATES = OpCases(
    ops=("causal_convolution", "gated_convolution", "gated_delta_rule", "gated_rms_norm", "sigmoid_gate"),
    checks=state_checks,
    misaligned_checks=misaligned_state_checks,
    launches=state_launches,
    calls=state_calls,
)
