"""`GpuMemory`: counts what tensors of a made-up GPU hold, as torch's caching allocator does."""

import torch
from torch.multiprocessing.reductions import StorageWeakRef

SEGMENT_BYTES = 2 << 20
"""The driver hands memory out in pieces of this size."""


class GpuMemory:
    """The contents of tensors, and what torch keeps of what they held.

    Attributes:
        capacity: bytes that this process may have.
        allocated: bytes that tensors hold.
        reserved: bytes that torch has from the driver.
        peak_allocated: most of them since the peaks were reset.
        peak_reserved: likewise.
    """

    def __init__(self, capacity: int) -> None:
        """Begin with nothing."""
        self.capacity = capacity
        self.allocated = self.reserved = self.peak_allocated = self.peak_reserved = 0
        self._live: dict[int, tuple[StorageWeakRef, int]] = {}

    def allocate(self, storage: torch.UntypedStorage) -> None:
        """Count a storage, unless it is counted.

        Raises:
            OutOfMemoryError: there is no room for it.
        """
        address = storage.data_ptr()
        known = self._live.get(address)
        if known is not None and not known[0].expired():  # type: ignore[no-untyped-call]  # torch has no types for it
            return
        self._sweep()
        wanted = self.allocated + storage.nbytes()
        if _in_segments(wanted) > self.capacity:
            raise torch.OutOfMemoryError(
                f"CUDA out of memory. Tried to allocate {storage.nbytes()} bytes; {self.capacity - self.allocated} are "
                "free."
            )
        self._live[address] = StorageWeakRef(storage), storage.nbytes()  # type: ignore[no-untyped-call]  # torch has no types for it
        self.allocated = wanted
        self.reserved = max(self.reserved, _in_segments(wanted))
        self.peak_allocated = max(self.peak_allocated, wanted)
        self.peak_reserved = max(self.peak_reserved, self.reserved)

    def empty_cache(self) -> None:
        """Give back to the driver what no tensor holds."""
        self._sweep()
        self.reserved = _in_segments(self.allocated)

    def reset_peaks(self) -> None:
        """Let the peaks be what is held."""
        self._sweep()
        self.peak_allocated, self.peak_reserved = self.allocated, self.reserved

    def stats(self) -> dict[str, object]:
        """Return what `torch._C._cuda_memoryStats` returns of it."""
        self._sweep()
        return {
            "allocated_bytes": {"all": {"current": self.allocated, "peak": self.peak_allocated}},
            "reserved_bytes": {"all": {"current": self.reserved, "peak": self.peak_reserved}},
        }

    def _sweep(self) -> None:
        """Forget the storages that are gone."""
        for address, (storage, num_bytes) in list(self._live.items()):
            if storage.expired():  # type: ignore[no-untyped-call]  # torch has no types for it
                del self._live[address]
                self.allocated -= num_bytes


def _in_segments(num_bytes: int) -> int:
    return -(-num_bytes // SEGMENT_BYTES) * SEGMENT_BYTES
