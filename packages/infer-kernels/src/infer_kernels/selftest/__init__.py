"""Checks on the user's own machine that a model's ops compute what their references do. Needs torch and triton only.

`model_checks` returns one `SelfCheck` for each op and edge case that a model meets. A check computes the op on a device
and its reference on the host, at shapes where kernels go wrong, and raises if they differ. `infer-server doctor` runs
them; running them also compiles the model's kernels into Triton's cache.
"""

from infer_kernels.selftest.check import CheckImpossibleError, ModelOps, MoeOps, QuantizedOps, SelfCheck
from infer_kernels.selftest.model_checks import model_checks

__all__ = ["CheckImpossibleError", "ModelOps", "MoeOps", "QuantizedOps", "SelfCheck", "model_checks"]
