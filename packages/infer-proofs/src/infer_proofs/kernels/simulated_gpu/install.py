"""`simulated_gpus`: puts made-up GPUs below torch's Python and Triton's interpreter, for a while."""

import importlib.util
import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor
from triton.runtime import driver, interpreter
from triton.tools.tensor_descriptor import TensorDescriptor

from infer_proofs.kernels.simulated_gpu.machine import GpuSpec, Machine
from infer_proofs.kernels.simulated_gpu.streams import event_base, graph_base, stream_base
from infer_proofs.kernels.simulated_gpu.tensors import GpuFactories, GpuTensor

_QUEUED_CALLS = ("_check_capability", "_check_cubins")
"""What torch does when CUDA is initialized; the rest registers operators, once in a process."""


@contextmanager
def simulated_gpus(*specs: GpuSpec) -> Iterator[Machine]:
    """Let this thread have these GPUs, one by default.

    Its kernels run only if the process was started with `TRITON_INTERPRET=1`.
    """
    machine = Machine(specs or (GpuSpec(),))
    torch._C._ensureCUDADeviceGuardSet()  # noqa: SLF001 - a guard that does nothing where there is no driver
    with ExitStack() as stack:
        for name, value in _functions(machine).items():
            stack.enter_context(patch.object(torch._C, name, value, create=True))  # noqa: SLF001 - below torch's Python
        _replace_classes(stack)
        for name, value in _torch_cuda(machine).items():
            stack.enter_context(patch.object(torch.cuda, name, value, create=True))
        stack.enter_context(patch.object(torch, "Generator", _generator_class()))
        stack.enter_context(patch.object(driver, "_active", SimpleNamespace(utils=SimpleNamespace())))
        stack.enter_context(patch.object(interpreter.GridExecutor, "__call__", _launch(machine)))
        lifts_on_host = torch._C._only_lift_cpu_tensors()  # noqa: SLF001 - as torch's fake tensors do
        torch._C._set_only_lift_cpu_tensors(True)  # noqa: SLF001, FBT003 - as above
        stack.callback(torch._C._set_only_lift_cpu_tensors, lifts_on_host)  # noqa: SLF001 - as above
        stack.enter_context(GpuFactories(machine))
        yield machine


def _functions(machine: Machine) -> dict[str, Any]:
    """Return what replaces functions and base classes of `torch._C`."""

    def current_stream(index: int) -> tuple[int, int, int]:
        return machine.gpu_of(index).current_stream, machine.current if index < 0 else index, 1

    def set_stream(*, stream_id: int, device_index: int, device_type: int) -> None:
        del device_type
        machine.current = device_index
        machine.gpus[device_index].current_stream = stream_id

    def set_device(index: int) -> None:
        machine.gpu_of(index)
        machine.current = index

    return {
        "_cuda_init": lambda: None,
        "_cuda_isInBadFork": lambda: False,
        "_cuda_getDeviceCount": lambda: len(machine.gpus),
        "_cuda_getDevice": lambda: machine.current,
        "_cuda_setDevice": set_device,
        "_cuda_canDeviceAccessPeer": lambda _one, _other: True,
        "_cuda_hasPrimaryContext": lambda index: index == machine.current,
        "_cuda_synchronize": machine.synchronize,
        "_cuda_getCurrentStream": current_stream,
        "_cuda_getDefaultStream": lambda index: (0, index, 1),
        "_cuda_setStream": set_stream,
        "_cuda_isCurrentStreamCapturing": lambda: machine.capture is not None,
        "_cuda_emptyCache": machine.empty_caches,
        "_cuda_memoryStats": lambda index: machine.gpu_of(index).memory.stats(),
        "_cuda_resetPeakMemoryStats": lambda index: machine.gpu_of(index).memory.reset_peaks(),
        "_cuda_sleep": lambda cycles: None,  # noqa: ARG005 - its signature
        "_host_emptyCache": lambda: None,
        "_graph_pool_handle": lambda: (0, next(machine.numbers)),
        "_CudaStreamBase": stream_base(machine),
        "_CudaEventBase": event_base(machine),
        "_CUDAGraph": graph_base(machine),
    }


def _torch_cuda(machine: Machine) -> dict[str, Any]:
    """Return what `torch.cuda` has copied from `torch._C`, and its state as if nothing had asked for CUDA yet."""

    def exchange(index: int) -> int:
        before, machine.current = machine.current, machine.current if index < 0 else index
        return before

    def properties(index: int) -> Any:
        spec = machine.gpu_of(index).spec
        major, minor = spec.capability
        return SimpleNamespace(
            name=spec.name,
            major=major,
            minor=minor,
            uuid=f"simulated-{os.getpid()}-{index}",
            is_integrated=spec.is_integrated,
            multi_processor_count=spec.num_sms,
            total_memory=spec.total_bytes,
            L2_cache_size=50 << 20,
            memory_clock_rate=2_619_000,  # kHz, of an H100
            memory_bus_width=5_120,
        )

    def free_and_total(index: int) -> tuple[int, int]:
        gpu = machine.gpu_of(index)
        return gpu.memory.capacity - gpu.memory.reserved, gpu.spec.total_bytes

    cuda: Any = torch.cuda
    return {
        "_initialized": False,
        "_cached_device_count": None,
        "_queued_calls": [call for call in cuda._queued_calls if call[0].__name__ in _QUEUED_CALLS],  # noqa: SLF001 - its state
        "_cudart": SimpleNamespace(cudaMemGetInfo=free_and_total),
        "_get_device_properties": properties,
        "_exchange_device": exchange,
        "_maybe_exchange_device": exchange,
        "default_generators": tuple(torch.Generator() for _ in machine.gpus),
    }


def _replace_classes(stack: ExitStack) -> None:
    """Let torch's Python classes of streams, events and graphs stand over the replaced ones."""
    streams, graphs = (_again(f"torch.cuda.{name}") for name in ("streams", "graphs"))
    for module, names in (
        (streams, ("Stream", "ExternalStream", "Event")),
        (graphs, ("CUDAGraph", "graph", "graph_pool_handle", "is_current_stream_capturing")),
    ):
        for name in names:
            stack.enter_context(patch.object(torch.cuda, name, getattr(module, name)))


def _again(name: str) -> ModuleType:
    """Execute a module of torch once more, without giving its place to the result."""
    found = importlib.util.find_spec(name)
    assert found is not None
    assert found.origin is not None
    spec = importlib.util.spec_from_file_location(name, Path(found.origin))
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _generator_class() -> type[torch.Generator]:
    class Generator(torch.Generator):
        """Draws on the CPU for every device."""

        def __new__(cls, device: object = "cpu") -> Any:
            del device
            return super().__new__(cls, "cpu")  # type: ignore[call-arg]  # torch's types know of no arguments

    return Generator


def _launch(machine: Machine) -> Any:
    """Return what runs an interpreted kernel over tensors of a GPU."""
    execute = interpreter.GridExecutor.__call__

    def launch(self: Any, *args: Any, **named: Any) -> None:
        names = [*self.arg_names[: len(args)], *named]
        for name, value in zip(names, (*args, *named.values()), strict=True):
            _check_argument(machine, self.fn.__name__, name, value)
        inner_args = [_inner(value) for value in args]
        inner_named = {name: _inner(value) for name, value in named.items()}
        machine.run(lambda: execute(self, *inner_args, **inner_named))

    return launch


def _check_argument(machine: Machine, kernel: str, name: str, value: Any) -> None:
    """Refuse what Triton or the driver would refuse.

    Raises:
        ValueError: a tensor is on the host.
        AcceleratorError: a tensor is on a GPU that is not the current one.
    """
    if isinstance(value, tuple):
        for part in value:
            _check_argument(machine, kernel, name, part)
    elif isinstance(value, TensorDescriptor):
        _check_argument(machine, kernel, name, value.base)
    elif isinstance(value, GpuTensor):
        if value.gpu.index != machine.current:
            raise torch.AcceleratorError(
                f"CUDA error: an illegal memory access was encountered (`{name}` of `{kernel}` is on {value.gpu}, and "
                f"cuda:{machine.current} is the current device)"
            )
    elif isinstance(value, Tensor) and not machine.is_pinned(value):
        raise ValueError(f"Pointer argument `{name}` of `{kernel}` cannot be accessed from Triton (cpu tensor?)")


def _inner(value: Any) -> Any:
    if isinstance(value, tuple):
        parts = [_inner(part) for part in value]
        return type(value)(*parts) if hasattr(value, "_fields") else type(value)(parts)
    if isinstance(value, TensorDescriptor):
        base: Any = value.base
        return TensorDescriptor(_inner(base), value.shape, value.strides, value.block_shape, value.padding)
    return value.on_cpu if isinstance(value, GpuTensor) else value
