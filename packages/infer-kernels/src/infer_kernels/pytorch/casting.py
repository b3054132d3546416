"""Conversion from one dtype to another on a CPU.

Between bf16 and fp16 PyTorch converts one number at a time; between either and fp32 with vector instructions. By way of
fp32, which holds every number of both, the bits are the same: a bf16 prompt's values leave an fp16 cache in a quarter
of the time.
"""

import torch
from torch import Tensor

from infer_kernels.pytorch.capture import scripted_when_captured

_HALVES = (torch.bfloat16, torch.float16)


def cast(x: Tensor, dtype: torch.dtype) -> Tensor:
    """Return `x` in `dtype`, itself where that is its own."""
    return _between_halves(x, dtype) if _is_slow(x, dtype) else x.to(dtype)


def widened_for(x: Tensor, dtype: torch.dtype) -> Tensor:
    """Return `x`, in fp32 where that is the faster start of a long copy into `dtype`."""
    return x.float() if _is_slow(x, dtype) else x


def _is_slow(x: Tensor, dtype: torch.dtype) -> bool:
    return x.dtype in _HALVES and dtype in _HALVES and x.dtype != dtype


@scripted_when_captured
def _between_halves(x: Tensor, dtype: torch.dtype) -> Tensor:
    # A few numbers take less time than another operation.
    return x.to(dtype) if x.numel() < 4096 else x.float().to(dtype)
