"""Copies between host and device that the host does not wait for."""

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


class HostCopy:
    """A copy of a tensor in the host's memory, complete once `wait` returns."""

    __slots__ = ("_copied", "_tensor")

    def __init__(self, tensor: Tensor) -> None:
        """Queue the copy of `tensor` behind what its device computes; on a CPU the tensor itself serves."""
        self._copied: torch.cuda.Event | None = None
        self._tensor = tensor
        if tensor.is_cuda:
            self._tensor = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)
            self._tensor.copy_(tensor, non_blocking=True)
            self._copied = torch.cuda.Event()  # type: ignore[no-untyped-call]  # torch has no types for it
            self._copied.record()

    def wait(self) -> Tensor:
        """Wait for the device and return the copy.

        Raises:
            RuntimeError: the device has failed.
        """
        if self._copied is not None:
            self._copied.synchronize()
        return self._tensor


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
