"""Launching kernels on a machine without a GPU, up to the point where a GPU would run them.

Inside `compile_only(capability)` every launcher runs on CPU tensors as it would on the device: real grid, strides and
specialization, compiled to machine code for that architecture. Nothing is computed.
"""

import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
import triton
import triton.backends.nvidia
from triton.backends.compiler import GPUTarget
from triton.runtime import driver
from triton.runtime.jit import JITFunction
from triton.tools.tensor_descriptor import TensorDescriptor

from infer_kernels.dispatch import TRITON_DEVICES

# Bytes of shared memory that one program may have, by compute capability.
SHARED_MEMORY = {
    80: 166_912,
    86: 101_376,
    87: 166_912,
    89: 101_376,
    90: 232_448,
    100: 232_448,
    103: 232_448,
    110: 232_448,
    120: 101_376,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class CompiledKernel:
    """The assembler's result for one variant of a kernel.

    Attributes:
        name: name of the kernel.
        registers: per thread.
        spilled_bytes: bytes of stack per thread: registers that did not fit.
        shared_memory: bytes per program.
        num_warps: number of warps of a program.
        num_stages: iterations whose loads may be in flight.
        ptx: the assembly that it was made from.
        machine_code: the cubin.
        constants: the kernel's compile-time arguments, by name.
    """

    name: str
    registers: int
    spilled_bytes: int
    shared_memory: int
    num_warps: int
    num_stages: int
    ptx: str
    machine_code: bytes
    constants: dict[str, object]


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """One launch of a kernel that did not take place.

    Attributes:
        name: name of the kernel.
        grid: programs in each of the three dimensions.
        arguments: the kernel's, by name: numbers as they are, tensors as the address of their first element, and
            descriptors as that address with shape and strides.
    """

    name: str
    grid: tuple[int, int, int]
    arguments: dict[str, object] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class LaunchLog:
    """The kernels compiled and launched inside `compile_only`, in order.

    Attributes:
        compiled: the variants that were compiled.
        launches: the launches.
        variants: name and specialization of those that `launch_only` did not compile.
    """

    compiled: list[CompiledKernel] = field(default_factory=list)
    launches: list[Launch] = field(default_factory=list)
    variants: list[tuple[str, str]] = field(default_factory=list)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Source:
    """The source of a kernel, as `_Driver.launcher_cls` takes it."""

    fn: "JITFunction[Any]"


@dataclass(frozen=True, slots=True, kw_only=True)
class _NotCompiled:
    """A variant that is launched without machine code."""

    run: Any
    function: None = None
    packed_metadata: None = None

    def launch_metadata(self, *_: object) -> None:
        """Nothing is to be known of a launch."""


class _Utils:
    def __init__(self, capability: int) -> None:
        self._capability = capability

    def get_device_properties(self, device: int) -> dict[str, int]:
        del device
        return {
            "max_shared_mem": SHARED_MEMORY[self._capability],
            "multiprocessor_count": 132,
            "warpSize": 32,
            "max_num_regs": 65_536,
        }

    def load_binary(self, name: str, cubin: bytes, shared: int, device: int) -> tuple[None, int, int, int, int]:
        del name, cubin, shared, device
        # No module: at exit there is nothing that Triton would have to unload.
        return (None, 1, 0, 0, 1024)


class _Driver:
    """As much of a CUDA driver as compiling and launching asks for."""

    def __init__(self, capability: int, log: LaunchLog) -> None:
        self._capability = capability
        self._log = log
        self.utils = _Utils(capability)

    def launcher_cls(self, source: Any, metadata: Any) -> Any:
        del metadata
        # Triton keeps compiled variants, and their launchers, longer than one `compile_only` lasts.
        name, names, device = source.fn.__name__, source.fn.arg_names, self._capability

        def launch(grid_x: int, grid_y: int, grid_z: int, *args: object, **_kwargs: object) -> None:
            active = driver.active
            assert isinstance(active, _Driver)
            assert active.get_current_device() == device
            # Triton's own arguments come before those of the kernel.
            arguments = {name: _seen_by_kernel(value) for name, value in zip(names, args[-len(names) :], strict=True)}
            active.record_launch(Launch(name=name, grid=(grid_x, grid_y, grid_z), arguments=arguments))

        return launch

    def record_launch(self, launch: Launch) -> None:
        self._log.launches.append(launch)

    def record_compilation(self, *, src: Any, metadata: Any, metadata_group: Any, times: Any, cache_hit: bool) -> None:
        del times, cache_hit
        files = {Path(file).suffix: Path(file) for file in metadata_group.values()}
        self._log.compiled.append(_inspect(src, metadata, ptx=files[".ptx"].read_text(), cubin=files[".cubin"]))

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
def compile_only(capability: int) -> Iterator[LaunchLog]:
    """Compile for `capability` (90 for sm_90) whatever is launched inside; yields what was compiled and launched.

    Public ops take their Triton path on CPU tensors. A variant is compiled, and listed, at its first launch in this
    process.

    Raises:
        triton.runtime.errors.OutOfResources: from the launch, where a variant does not fit shared memory.
    """
    log = LaunchLog()
    simulated = _Driver(capability, log)
    driver.set_active(simulated)
    listener, triton.knobs.compilation.listener = triton.knobs.compilation.listener, simulated.record_compilation
    TRITON_DEVICES.add("cpu")
    try:
        yield log
    finally:
        TRITON_DEVICES.discard("cpu")
        triton.knobs.compilation.listener = listener
        # None: the real driver is looked for again when it is next needed.
        driver.set_active(None)


@contextmanager
def launch_only(capability: int) -> Iterator[LaunchLog]:
    """As `compile_only`, but nothing is compiled, in no time; yields the launches and the variants of kernels."""
    _forget_variants(capability)

    def stand_in(kernel: "JITFunction[Any]", key: str, *_: object) -> _NotCompiled:
        assert isinstance(driver.active, _Driver)
        log.variants.append((kernel.__name__, key))
        made = _NotCompiled(run=driver.active.launcher_cls(_Source(fn=kernel), None))
        kernel.device_caches[capability][0][key] = made
        return made

    try:
        with compile_only(capability) as log, patch.object(JITFunction, "_do_compile", stand_in):
            yield log
    finally:
        _forget_variants(capability)


@contextmanager
def record_variants(capability: int) -> Iterator[set[tuple[str, str]]]:
    """As `launch_only`, but kernels are not launched either; yields the variants, which may be taken out in between."""
    variants: set[tuple[str, str]] = set()

    def record(*, key: str, fn: Any, **_: object) -> bool:
        variants.add((fn.name, key))
        return True  # it is seen to, so do not compile or launch

    _forget_variants(capability)
    hook, triton.knobs.runtime.jit_cache_hook = triton.knobs.runtime.jit_cache_hook, record
    try:
        with compile_only(capability):
            yield variants
    finally:
        triton.knobs.runtime.jit_cache_hook = hook


@contextmanager
def compile_afresh(capability: int) -> Iterator[LaunchLog]:
    """`compile_only` that lists also the variants that this process compiled earlier."""
    _forget_variants(capability)
    try:
        with compile_only(capability) as log:
            yield log
    finally:
        _forget_variants(capability)


def _forget_variants(capability: int) -> None:
    for name, module in tuple(sys.modules.items()):
        if name.startswith("infer_kernels."):
            for kernel in vars(module).values():
                if isinstance(kernel, JITFunction) and capability in kernel.device_caches:
                    del kernel.device_caches[capability]


def _seen_by_kernel(value: object) -> object:
    if isinstance(value, torch.Tensor):
        return value.data_ptr()
    if isinstance(value, TensorDescriptor):
        return value.base.data_ptr(), *value.shape, *value.strides
    return value


def _inspect(source: Any, metadata: dict[str, Any], *, ptx: str, cubin: Path) -> CompiledKernel:
    tool = Path(triton.backends.nvidia.__file__).parent / "bin" / "cuobjdump"
    report = subprocess.run(  # noqa: S603 - Triton's own tool on a file of ours
        [tool, "--dump-resource-usage", cubin], capture_output=True, text=True, check=True
    ).stdout
    usage = re.search(r"REG:(\d+) STACK:(\d+)", report)
    assert usage is not None, report
    return CompiledKernel(
        name=source.fn.__name__,
        registers=int(usage[1]),
        spilled_bytes=int(usage[2]),
        shared_memory=metadata["shared"],
        num_warps=metadata["num_warps"],
        num_stages=metadata["num_stages"],
        ptx=ptx,
        machine_code=cubin.read_bytes(),
        constants={source.fn.arg_names[path[0]]: value for path, value in source.constants.items() if len(path) == 1},
    )
