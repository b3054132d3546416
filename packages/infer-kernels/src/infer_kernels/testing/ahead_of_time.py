"""Launching kernels on a machine without a GPU, up to the point where a GPU would run them. Knows Triton's driver.

Inside `compile_only(capability)` every launcher runs on CPU tensors as it would on the device: real grid, strides and
specialisation, compiled to machine code for that architecture. Nothing is computed.
"""

import re
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import triton.backends.nvidia
from triton.backends.compiler import GPUTarget
from triton.runtime import driver

# Bytes of shared memory that one program may have, by compute capability.
SHARED_MEMORY = {80: 166_912, 86: 101_376, 89: 101_376, 90: 232_448, 100: 232_448, 120: 101_376}


@dataclass(frozen=True, slots=True, kw_only=True)
class CompiledKernel:
    """What the assembler made of one variant of a kernel.

    Attributes:
        name: of the kernel.
        registers: per thread.
        spilled_bytes: of stack per thread: registers that did not fit.
        shared_memory: bytes per program.
        machine_code: the cubin.
    """

    name: str
    registers: int
    spilled_bytes: int
    shared_memory: int
    machine_code: bytes


class _Utils:
    def __init__(self, capability: int, compiled: list[CompiledKernel]) -> None:
        self._capability = capability
        self._compiled = compiled

    def get_device_properties(self, device: int) -> dict[str, int]:
        del device
        return {
            "max_shared_mem": SHARED_MEMORY[self._capability],
            "multiprocessor_count": 132,
            "warpSize": 32,
            "max_num_regs": 65_536,
        }

    def load_binary(self, name: str, cubin: bytes, shared: int, device: int) -> tuple[int, int, int, int, int]:
        del device
        self._compiled.append(_inspect(name, cubin, shared))
        return (1, 1, 0, 0, 1024)


class _Driver:
    """As much of a CUDA driver as compiling and launching asks for."""

    def __init__(self, capability: int, compiled: list[CompiledKernel]) -> None:
        self._capability = capability
        self.utils = _Utils(capability, compiled)

    def launcher_cls(self, source: Any, metadata: Any) -> Any:
        del source, metadata
        return lambda *_args, **_kwargs: None

    def get_current_target(self) -> GPUTarget:
        return GPUTarget("cuda", self._capability, 32)

    def get_current_device(self) -> int:
        # Compiled variants are kept by device: an architecture each.
        return self._capability

    def get_current_stream(self, device: int | None = None) -> int:
        del device
        return 0

    def get_active_torch_device(self) -> torch.device:
        return torch.device("cpu")


@contextmanager
def compile_only(capability: int) -> Iterator[list[CompiledKernel]]:
    """Compile for `capability` (90 for sm_90) whatever is launched inside; yields what was compiled, in order.

    A variant is compiled, and listed, at its first launch in this process.

    Raises:
        triton.runtime.errors.OutOfResources: from the launch, where a variant does not fit shared memory.
    """
    compiled: list[CompiledKernel] = []
    driver.set_active(_Driver(capability, compiled))
    try:
        yield compiled
    finally:
        # None: the real driver is looked for again when it is next needed.
        driver.set_active(None)


def _inspect(name: str, cubin: bytes, shared: int) -> CompiledKernel:
    tool = Path(triton.backends.nvidia.__file__).parent / "bin" / "cuobjdump"
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        report = subprocess.run(  # noqa: S603 - Triton's own tool on a file of ours
            [tool, "--dump-resource-usage", file.name], capture_output=True, text=True, check=True
        ).stdout
    usage = re.search(r"REG:(\d+) STACK:(\d+)", report)
    assert usage is not None, report
    return CompiledKernel(
        name=name,
        registers=int(usage[1]),
        spilled_bytes=int(usage[2]),
        shared_memory=shared,
        machine_code=cubin,
    )
