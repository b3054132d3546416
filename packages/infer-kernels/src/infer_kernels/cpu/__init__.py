"""Kernels in C++ for CPUs, compiled on first use; and what records them into a step. Knows no model.

`csrc/` holds the sources, each kernel with the arithmetic of its reference. Where there is no compiler, or
`INFER_CPU_KERNELS=0`, every op computes with plain PyTorch instead.
"""

from infer_kernels.cpu.calls import CapturedStep, NotCapturableError
from infer_kernels.cpu.library import library
from infer_kernels.cpu.packed_weight import (
    PackedExperts,
    PackedQuantizedExperts,
    PackedQuantizedWeight,
    PackedWeight,
)

__all__ = [
    "CapturedStep",
    "NotCapturableError",
    "PackedExperts",
    "PackedQuantizedExperts",
    "PackedQuantizedWeight",
    "PackedWeight",
    "library",
]
