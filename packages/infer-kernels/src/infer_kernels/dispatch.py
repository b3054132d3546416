"""The choice of the path that an op takes. Knows devices and gradients; knows no op."""

import torch
from torch import Tensor

from infer_kernels.cpu.calls import DTYPES
from infer_kernels.cpu.library import library

TRITON_DEVICES = {"cuda"}
"""Device types that take the Triton path; `infer_proofs.kernels` adds "cpu" while it interprets or compiles."""


def wants_grad(*tensors: Tensor) -> bool:
    """Whether autograd is recording and any of `tensors` takes part."""
    return torch.is_grad_enabled() and any(tensor.requires_grad for tensor in tensors)


def takes_triton(*tensors: Tensor) -> bool:
    """Whether an op on `tensors` runs its Triton kernel: on CUDA, unless a gradient is wanted (kernels have none)."""
    return tensors[0].device.type in TRITON_DEVICES and not wants_grad(*tensors)


def takes_cpu_kernel(*tensors: Tensor) -> bool:
    """Whether an op on `tensors` runs its C++ kernel: on a CPU that has them, unless a gradient is wanted."""
    first = tensors[0]
    return (
        first.is_cpu
        and first.dtype in DTYPES
        and "cpu" not in TRITON_DEVICES
        and not wants_grad(*tensors)
        and library(DTYPES[first.dtype]) is not None  # the last condition: it compiles the kernels
    )
