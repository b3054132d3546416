"""Checks of a model's ops, on the machine that it runs on: each op's cases, which tests and reports share.

`model_checks` returns one `SelfCheck` for each op and edge case that a model meets. A check computes the op on a device
and its reference on the host, at shapes where kernels go wrong, and raises if they differ. `infer-server doctor` runs
them on the user's own machine, which also compiles the model's kernels into Triton's cache.

self_check.py      `ModelOps` and `SelfCheck`; model_checks.py lists the checks
op_call.py         `OpCall`: one call of an op, to be launched or compared with its reference
memory_rates.py    how fast a device copies memory and reads a KV cache
closeness.py       how far two results may be apart
cases/             the cases of each op
inputs/            random batches, draws, experts and quantized weights
"""

from infer_kernels.checks.model_checks import model_checks
from infer_kernels.checks.self_check import (
    CheckImpossibleError,
    ConvolutionOps,
    DeltaRuleOps,
    HeadOps,
    ModelOps,
    MoeOps,
    QuantizedOps,
    ScanOps,
    SelfCheck,
)

__all__ = [
    "CheckImpossibleError",
    "ConvolutionOps",
    "DeltaRuleOps",
    "HeadOps",
    "ModelOps",
    "MoeOps",
    "QuantizedOps",
    "ScanOps",
    "SelfCheck",
    "model_checks",
]
