"""`HostCopy`: a tensor on its way from a device to the host, which goes on meanwhile."""

import torch
from torch import Tensor


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
