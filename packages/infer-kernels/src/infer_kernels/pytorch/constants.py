"""Numbers as CPU tensors, made once."""

from functools import lru_cache

import torch
from torch import Tensor


@lru_cache(maxsize=1024)
def fp32_scalar(number: float) -> Tensor:
    """`number` as an fp32 tensor [1]: unlike a Python number, it makes a result of bf16 operands fp32."""
    with torch.inference_mode(mode=False):  # it is kept for later steps
        return torch.tensor([number])
