"""Copies several host arrays to a device in one transfer."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

_DTYPES = {
    np.dtype(np.int64): torch.int64,
    np.dtype(np.int32): torch.int32,
    np.dtype(np.float32): torch.float32,
}


def to_device(arrays: Mapping[str, npt.NDArray[Any]], device: torch.device) -> dict[str, Tensor]:
    """Return tensors on `device` with the values of contiguous `arrays`, each [n] int64, int32 or float32."""
    # Arrays with the largest items come first, so that each array is aligned to its item size.
    ordered = sorted(arrays.items(), key=lambda item: -item[1].itemsize)
    packed = torch.from_numpy(np.concatenate([array.view(np.uint8) for _, array in ordered]))
    # From pinned memory the copy is queued behind the kernels, and the host does not wait for them.
    buffer = packed.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else packed.to(device)
    tensors = {}
    start = 0
    for name, array in ordered:
        end = start + array.nbytes
        tensors[name] = buffer[start:end].view(_DTYPES[array.dtype])
        start = end
    return tensors
