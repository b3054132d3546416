"""`Machine`: the state of the made-up GPUs: which is current, what their streams still have to do, their memory."""

import itertools
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef

from infer_proofs.kernels.simulated_gpu.memory import GpuMemory


class PinnedMemoryError(RuntimeError):
    """The host changed pinned memory that a queued copy still had to read or to write."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuSpec:
    """A GPU's properties.

    Attributes:
        name: as `nvidia-smi` prints it.
        capability: compute capability.
        num_sms: multiprocessors.
        total_bytes: size of its memory.
        used_bytes: those of them that other processes and the context hold.
        is_integrated: whether its memory is the host's.
    """

    name: str = "Simulated GPU"
    capability: tuple[int, int] = (9, 0)
    num_sms: int = 4
    total_bytes: int = 1 << 30
    used_bytes: int = 64 << 20
    is_integrated: bool = False


@dataclass(slots=True)
class StreamState:
    """The copies that a stream has not ended, in order.

    Attributes:
        queued: each with its number; running one ends it.
        count: copies and waits that were ever queued.
    """

    queued: list[tuple[int, Callable[[], None]]] = field(default_factory=list)
    count: int = 0

    def queue(self, end: Callable[[], None]) -> None:
        """Add a copy that `end` ends."""
        self.count += 1
        self.queued.append((self.count, end))

    def end(self, count: int) -> None:
        """End what was queued up to the copy with the number `count`."""
        while self.queued and self.queued[0][0] <= count:
            self.queued.pop(0)[1]()


@dataclass(slots=True)
class Gpu:
    """One GPU.

    Attributes:
        spec: what it says of itself.
        memory: what is allocated.
        streams: by their id; 0 is the default one.
        current_stream: id of the one that work is queued on.
    """

    spec: GpuSpec
    memory: GpuMemory
    streams: dict[int, StreamState] = field(default_factory=lambda: {0: StreamState()})
    current_stream: int = 0

    @property
    def stream(self) -> StreamState:
        """The current stream."""
        return self.streams[self.current_stream]


class Machine:
    """The GPUs of this process.

    Attributes:
        gpus: all of them.
        current: index of the thread's current one.
        capture: takes the launches of a graph that is being captured; None: none is.
        synchronizations: how often the host has waited for a device.
    """

    def __init__(self, specs: tuple[GpuSpec, ...]) -> None:
        """Begin with empty GPUs."""
        self.gpus = [Gpu(spec, GpuMemory(spec.total_bytes - spec.used_bytes)) for spec in specs]
        self.current = 0
        self.capture: list[Callable[[], None]] | None = None
        self.synchronizations = 0
        self.numbers = itertools.count(1)
        self._pinned: dict[int, StorageWeakRef] = {}

    def gpu_of(self, index: int | None) -> Gpu:
        """Return the GPU with an index, or the current one.

        Raises:
            AcceleratorError: there is none.
        """
        index = self.current if index is None or index < 0 else index
        if index >= len(self.gpus):
            raise torch.AcceleratorError("CUDA error: invalid device ordinal")
        return self.gpus[index]

    def synchronize(self, index: int | None = None) -> None:
        """Wait for everything that a GPU has to do."""
        self.forbid_in_capture("waiting for the device")
        self.synchronizations += 1
        for stream in self.gpu_of(index).streams.values():
            stream.end(stream.count)

    def synchronize_stream(self, index: int | None = None) -> None:
        """Wait for what is queued on a GPU's current stream."""
        self.forbid_in_capture("waiting for the stream")
        self.synchronizations += 1
        stream = self.gpu_of(index).stream
        stream.end(stream.count)

    def empty_caches(self) -> None:
        """Give back to the driver what no tensor holds."""
        for gpu in self.gpus:
            gpu.memory.empty_cache()

    def forbid_in_capture(self, what: str) -> None:
        """Refuse what a graph cannot hold while one is captured.

        Raises:
            AcceleratorError: one is.
        """
        if self.capture is not None:
            raise torch.AcceleratorError(f"CUDA error: operation not permitted when stream is capturing ({what})")

    def run(self, launch: Callable[[], None]) -> None:
        """Do what a device does, and let the graph that is being captured hold it."""
        if self.capture is not None:
            self.capture.append(launch)
        launch()

    def pin(self, tensor: Tensor) -> Tensor:
        """Let the memory of a tensor of the CPU be pinned."""
        storage = tensor.untyped_storage()
        self._pinned[storage.data_ptr()] = StorageWeakRef(storage)  # type: ignore[no-untyped-call]  # torch has no types for it
        return tensor

    def is_pinned(self, tensor: Tensor) -> bool:
        """Return whether the memory of a tensor of the CPU is pinned."""
        found = self._pinned.get(tensor.untyped_storage().data_ptr())
        return found is not None and not found.expired()  # type: ignore[no-untyped-call]  # torch has no types for it

    def copy_from_host(self, target: Tensor, source: Tensor, *, index: int, non_blocking: bool) -> None:
        """Copy to a GPU: at once as the device sees it, while the host must not touch pinned `source` yet."""
        target.copy_(source)
        if not (non_blocking and self.is_pinned(source)):
            self.synchronize_stream(index)
            return
        before = _bytes_of(source).clone()

        def end() -> None:
            if not torch.equal(_bytes_of(source), before):
                raise PinnedMemoryError(
                    f"pinned memory {list(source.shape)} {source.dtype} was overwritten before its copy to the GPU had "
                    "ended; wait for an event that was recorded behind the copy"
                )

        self.gpu_of(index).stream.queue(end)

    def copy_to_host(self, target: Tensor, source: Tensor, *, index: int, non_blocking: bool) -> None:
        """Copy to the host, whose memory holds nonsense until it has waited."""
        if not non_blocking:
            self.synchronize_stream(index)
            target.copy_(source)
            return
        data = source.clone()
        fill_with_nonsense(target)
        before = _bytes_of(target).clone()

        def end() -> None:
            if not torch.equal(_bytes_of(target), before):
                raise PinnedMemoryError(
                    f"memory of the host {list(target.shape)} {target.dtype} was written before the copy from the GPU "
                    "to it had ended"
                )
            with torch.inference_mode():
                target.copy_(data)

        self.gpu_of(index).stream.queue(end)


@torch.inference_mode()
def fill_with_nonsense(tensor: Tensor) -> Tensor:
    """Overwrite a tensor of the CPU: NaN, or a large number that is no id, length or slot."""
    if tensor.is_floating_point():
        return tensor.fill_(torch.nan)
    return tensor.fill_(torch.iinfo(tensor.dtype).max - 7 if tensor.dtype != torch.bool else True)


def _bytes_of(tensor: Tensor) -> Any:
    return tensor.contiguous().view(-1).view(torch.uint8)
