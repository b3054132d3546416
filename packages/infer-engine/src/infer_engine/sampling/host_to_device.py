"""Several host arrays to a device in one copy. Knows bytes; knows not what they mean."""

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
    # The widest first, so that each begins at a multiple of its item's size.
    ordered = sorted(arrays.items(), key=lambda item: -item[1].itemsize)
    packed = np.concatenate([array.view(np.uint8) for _, array in ordered])
    staged = torch.from_numpy(packed).to(device)
    tensors = {}
    start = 0
    for name, array in ordered:
        end = start + array.nbytes
        tensors[name] = staged[start:end].view(_DTYPES[array.dtype])
        start = end
    return tensors
