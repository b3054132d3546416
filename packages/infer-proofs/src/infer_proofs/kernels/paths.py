"""Paths on which a process computes: Triton's kernels where it interprets them, else those of a CPU.

Triton decides when a kernel is decorated whether it will be interpreted or compiled, so one process cannot do both.
"""

import os

import pytest
import torch

from infer_proofs.kernels.cpu_kernels import needs_cpu_kernels

DTYPES = [torch.float32, torch.float16, torch.bfloat16]
INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
"""Whether this process interprets Triton's kernels."""
ON_CPU = [pytest.param("c++", marks=needs_cpu_kernels), "pytorch"]
EVERY_PATH = ["triton"] if INTERPRETED else ON_CPU
TRITON_OR_PYTORCH = ["triton" if INTERPRETED else "pytorch"]
"""Paths of ops that have no C++ kernel."""
