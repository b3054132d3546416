"""Ops whose sequences have a state of fixed size: convolutions, the gated delta rule, Mamba 2's selective scan."""

from infer_kernels.states.causal_convolution import ConvolutionActivation, causal_convolution, gated_convolution
from infer_kernels.states.gated_delta_rule import gated_delta_rule
from infer_kernels.states.mamba2_scan import mamba2_scan
from infer_kernels.states.state_rows import StateRows

__all__ = [
    "ConvolutionActivation",
    "StateRows",
    "causal_convolution",
    "gated_convolution",
    "gated_delta_rule",
    "mamba2_scan",
]
