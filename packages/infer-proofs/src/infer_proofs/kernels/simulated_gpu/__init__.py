"""A made-up CUDA device: torch's own Python runs as on a GPU, and operators and interpreted kernels compute on the CPU.

    with simulated_gpus(GpuSpec(total_bytes=1 << 30)):
        x = torch.ones(3, device="cuda:0")      # `x.is_cuda`; it cannot meet a tensor of the CPU
        kernel[(1,)](x, ...)                    # interpreted, over the very memory of `x`

Replaced is what lies below torch's Python: the functions `torch._C._cuda_*` and the base classes of events, streams
and graphs. So what torch's Python refuses on a GPU it refuses here, such as `torch.cuda.set_device("cuda")`.

Like a device, and unlike mocks that take anything, it

- lets copies from and to pinned memory end when their event or stream is waited for, and not before: a result that is
  read early is nonsense, and pinned memory that is overwritten early is an error;
- gives memory that was never written nonsense instead of zeros;
- counts what is allocated and what torch keeps, and runs out of memory;
- captures graphs, and refuses what a graph cannot hold;
- refuses kernels whose arguments lie on the host or on another device than the current one.

It knows nothing of time, of several streams at once, and of what a compiled kernel does.
"""

from infer_proofs.kernels.simulated_gpu.install import simulated_gpus
from infer_proofs.kernels.simulated_gpu.machine import GpuSpec, Machine, PinnedMemoryError

__all__ = ["GpuSpec", "Machine", "PinnedMemoryError", "simulated_gpus"]
