"""`LaunchCase`: one kernel in one configuration that ships, as a launch to be compiled."""

from collections.abc import Callable
from dataclasses import dataclass

import torch

BF16, FP16, FP32 = torch.bfloat16, torch.float16, torch.float32
SHORT_NAMES = {BF16: "bf16", FP16: "fp16", FP32: "fp32"}
FIRST_FP8_CAPABILITY = 89
"""Triton converts float8_e4m3fn from sm_89 on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchCase:
    """One kernel in one configuration.

    A variant of a kernel depends on the model, on dtypes and on modes, not on the batch: the batches are tiny.

    Attributes:
        op: the public function.
        label: dtype, shape and mode.
        dtype: dtype of the operands that are computed with.
        launch: calls the op on CPU tensors; to be called inside `compile_only`.
        kernel: which of the op's kernels is meant, by its name; None: it has one.
        first_capability: 89 for what devices before sm_89 cannot run, and are never asked to.
    """

    op: str
    label: str
    dtype: torch.dtype
    launch: Callable[[], object]
    kernel: str | None = None
    first_capability: int = 0

    def __str__(self) -> str:
        """The op and its label."""
        return f"{self.op}: {self.label}"


def launch_case(
    op: str,
    dtype: torch.dtype,
    label: str,
    launch: Callable[[], object],
    kernel: str | None = None,
    *,
    first_capability: int = 0,
) -> LaunchCase:
    """Return a case whose label begins with its dtype, and ends with the name of its kernel if one is given."""
    label = f"{SHORT_NAMES[dtype]}, {label}"
    if kernel is not None:
        label += f", {kernel.removesuffix('_kernel').strip('_').replace('_', ' ')}"
    return LaunchCase(op=op, label=label, dtype=dtype, launch=launch, kernel=kernel, first_capability=first_capability)
