"""The part `environment` once torch is imported: GPUs and Triton, or the compiler, threads and memory of a CPU."""

import os
from pathlib import Path

import torch

from infer_engine.doctor.first_launch import examine_first_launches
from infer_engine.doctor.gpu_facts import (
    EXCLUSIVE,
    DriverFacts,
    ask_nvidia_smi,
    explain_unusable,
    has_mig,
    is_exclusive,
    is_slice,
)
from infer_engine.doctor.reported_faults import faults_of
from infer_engine.doctor.reporter import Reporter, describe, size
from infer_engine.executor.gpu_links import explain_gpu_links
from infer_engine.gpu_visibility import explain_hidden
from infer_engine.host_limits import HostLimits
from infer_engine.processes.processors import THREADS
from infer_engine.sizing import gpu_memory, resolve_device
from infer_kernels.compiler_versions import compiler_versions
from infer_kernels.cpu.compilation import (
    INSTALL_HINT,
    SWITCH,
    BuildError,
    find_compiler,
    is_switched_off,
)
from infer_kernels.cpu.compilation import cache_folder as cpu_cache_folder
from infer_kernels.gpu_start import GpuUnusableError, cache_folder, prepare_gpu, require_capability, why_unwritable
from infer_kernels.optional_triton import HAS_TRITON, TRITON_MISSING

MAX_KERNEL_PROCESSES = 4
"""Processes that compile and compare Triton kernels side by side; each compiles on one core."""
PROHIBITED = "Prohibited"
PROVEN_BY_CHECKS = (
    "none is needed if the parts `kernels` and `engine` pass with these versions, which counts: the report is of other "
    "kernels than ours; else install another version of torch, which brings another Triton"
)
_BUSY_SHARE = 0.1
"""Share of a GPU's memory in use by others beyond which the default of `gpu_memory_utilization` is too much."""


def examine_devices(reporter: Reporter, driver: DriverFacts, limits: HostLimits) -> None:
    """Report the device of the request: a GPU with what Triton needs, else the CPU with what its kernels need."""
    on_gpu = _examine_device(reporter, driver, limits)
    where = f"on {limits.threads() or limits.usable_processors} processors"
    if on_gpu:
        where = f"on a GPU, {_examine_triton(reporter, driver)}"
    else:
        _examine_cpu_kernels(reporter)
        _examine_threads(reporter, limits, torch.get_num_threads())
        _examine_memory_limit(reporter, limits)
    reporter.finish(f"torch {torch.__version__} computes {where}")


def _examine_device(reporter: Reporter, driver: DriverFacts, limits: HostLimits) -> bool:
    """Report the GPUs; return whether the device of the request is one that works."""
    reporter.details(wheel_cuda=torch.version.cuda, device="cpu", kernel_processes=1)
    wants_gpu = reporter.request.device.startswith("cuda")
    if reporter.request.device == "cpu":
        reporter.skip("GPU", "`device` is 'cpu'")
        return False
    if not torch.cuda.is_available():
        if driver.shows_gpu or wants_gpu:
            found, fix = explain_unusable(
                driver,
                wheel_cuda=torch.version.cuda,
                torch_says=_why_cuda_fails(),
                has_mig=has_mig(ask_nvidia_smi()),
            )
            there = f"there is {driver.describe()}" if driver.node else f"`device` is {reporter.request.device!r}"
            reporter.fail("GPU", f"{there}, but {found}", fix=f"{fix}; or compute on the CPU with `--device cpu`")
        elif driver.node is not None:
            found = f"there is {driver.describe()}, without a driver of NVIDIA's in Windows, so the CPU computes"
            reporter.skip("GPU", found)
        else:
            reporter.skip("GPU", "this machine shows none, so the CPU computes")
        return False
    index = int(reporter.request.device.partition(":")[2] or 0)
    if index >= torch.cuda.device_count():
        count = torch.cuda.device_count()
        hidden = explain_hidden(driver.visible_devices, num_usable=count)
        found = f"`device` is 'cuda:{index}' and there are {count} GPUs{hidden and f': {hidden}'}"
        reporter.fail("GPU", found, fix="use a lower number: GPUs that are visible are numbered from 0")
        return False
    if hidden := explain_hidden(driver.visible_devices, num_usable=torch.cuda.device_count()):
        reporter.warn("visible GPUs", hidden, fix="name GPUs as `nvidia-smi -L` lists them, or unset it")
    return _examine_gpu(reporter, index, limits)


def _examine_gpu(reporter: Reporter, index: int, limits: HostLimits) -> bool:
    """Report a GPU that torch sees; return whether it computes."""
    told = ask_nvidia_smi()
    properties = [torch.cuda.get_device_properties(each) for each in range(torch.cuda.device_count())]
    gpus = [
        {"name": each.name, "capability": [each.major, each.minor], "memory": each.total_memory} for each in properties
    ]
    reporter.details(gpus=gpus, nvidia_smi=told)
    # `nvidia-smi` counts all GPUs, torch those that are visible: a mode is certain where there is one.
    modes = {gpu["compute_mode"] for gpu in told}
    if modes == {PROHIBITED}:
        fix = "`nvidia-smi --compute-mode=DEFAULT`, as root"
        reporter.fail("compute mode", "the GPU's compute mode is Prohibited: no process may use it", fix=fix)
        return False
    takes_one = is_exclusive(told)
    try:
        free, total = gpu_memory(torch.device("cuda", index))
    except RuntimeError as error:
        mode = f", and the compute mode is {EXCLUSIVE}, so that a second process is refused" if takes_one else ""
        fix = "end the other process that uses the GPU, or name another one with `--device`"
        reporter.fail("GPU", f"{properties[index].name} cannot be used: {describe(error)}{mode}", fix=fix)
        return False
    if takes_one:
        found = f"{EXCLUSIVE}: the GPU takes one process, so kernels are checked by one, and a second server is refused"
        reporter.ok("compute mode", found)
    if is_slice(properties[index].name):
        found = f"this is a slice of {size(total)}: a process sees one slice, so `--tensor-parallel-size` is 1 at most"
        reporter.ok("MIG", found)
    capability = (properties[index].major, properties[index].minor)
    try:
        require_capability(capability, properties[index].name)
    except GpuUnusableError as error:
        reporter.fail("GPU", str(error), fix="compute on the CPU with `--device cpu`")
        return False
    processes = 1 if takes_one else min(MAX_KERNEL_PROCESSES, limits.threads() or limits.usable_processors)
    reporter.details(device=f"cuda:{index}", kernel_processes=processes, gpu_memory={"free": free, "total": total})
    name = f"{properties[index].name}, compute capability {capability[0]}.{capability[1]}, {size(total)}"
    reporter.ok("GPU", name)
    if total - free > _BUSY_SHARE * total:
        share = int(100 * free / total) / 100
        fix = f"end what uses it, or start the server with `--gpu-memory-utilization` at most {share:.2f}"
        reporter.warn("GPU memory", f"{size(total - free)} of {size(total)} are in use", fix=fix)
    else:
        reporter.ok("GPU memory", f"{size(free)} of {size(total)} are free")
    _examine_links(reporter)
    return True


def _examine_links(reporter: Reporter) -> None:
    """Report what may keep several GPUs from computing together."""
    count = torch.cuda.device_count()
    if count < 2:
        return
    links = explain_gpu_links([torch.device("cuda", index) for index in range(count)])
    for link in links:
        reporter.warn(link.what, link.found, fix=link.fix)
    if not links:
        reporter.ok("several GPUs", f"{count} with direct access to each other, and shared memory for NCCL")


def _why_cuda_fails() -> str:

    try:
        torch.cuda.init()  # type: ignore[no-untyped-call]  # torch has no types here
    except (RuntimeError, AssertionError) as error:
        return describe(error)
    return "it sees no GPU"


def _examine_triton(reporter: Reporter, driver: DriverFacts) -> str:
    """Report whether Triton can compile: its cache, and the C file of its launcher; return with which versions."""
    if not HAS_TRITON:
        reporter.fail("Triton", TRITON_MISSING, fix="install it, or compute on the CPU with `--device cpu`")
        return "without Triton"
    _examine_folder(reporter, "Triton's cache", cache_folder(), variable="TRITON_CACHE_DIR")
    try:
        prepare_gpu(resolve_device(reporter.request.device), driver_cuda=driver.driver_cuda)
    except GpuUnusableError as error:
        reporter.fail("Triton's launcher", str(error), fix="install a C compiler and Python's headers")
    else:
        reporter.ok("Triton's launcher", "compiled by this machine's C compiler")
        examine_first_launches(reporter)
    return _examine_compilers(reporter, driver)


def _examine_compilers(reporter: Reporter, driver: DriverFacts) -> str:
    """Report the versions that kernels are made and run by, with others' reports of wrong code; return the versions."""
    properties = torch.cuda.get_device_properties(resolve_device(reporter.request.device))
    capability = (properties.major, properties.minor)
    compilers = compiler_versions(capability)
    by = f"{compilers}, driver {driver.driver_version}"
    reporter.details(kernel_compilers=compilers.as_json() | {"driver": driver.driver_version})
    reporter.ok("kernel compilers", by)
    for fault in faults_of(capability, compilers):
        found = f"{fault.reported}; here {compilers} compiles for {capability[0]}.{capability[1]}"
        reporter.warn(f"reported in {fault.report}", found, fix=PROVEN_BY_CHECKS)
    return by


def _examine_cpu_kernels(reporter: Reporter) -> None:
    """Report whether the C++ kernels can be compiled; the part `kernels` does it."""
    if is_switched_off():
        reporter.warn("C++ kernels", f"`{SWITCH}` switches them off", fix=f"unset `{SWITCH}`: plain PyTorch is slower")
        return
    try:
        reporter.ok("C++ compiler", " ".join(find_compiler()))
    except BuildError as error:
        fix = f"{INSTALL_HINT}: without a compiler plain PyTorch computes, several times slower"
        reporter.warn("C++ compiler", str(error), fix=fix)
        return
    try:
        _examine_folder(reporter, "cache of the C++ kernels", cpu_cache_folder(), variable="INFER_CACHE_DIR")
    except RuntimeError as error:  # there is no home
        reporter.warn("cache of the C++ kernels", describe(error), fix="set `INFER_CACHE_DIR` to a folder")


def _examine_folder(reporter: Reporter, what: str, folder: Path, *, variable: str) -> None:
    """Report whether a cache can be written; if not, kernels may be compiled again at every start."""
    if refused := why_unwritable(folder):
        fix = f"set `{variable}` to a folder that can be written: else kernels may be compiled at every start"
        reporter.warn(what, f"{folder} cannot be written: {refused}", fix=fix)
    else:
        reporter.ok(what, f"{folder} can be written")


def _examine_threads(reporter: Reporter, limits: HostLimits, num_threads: int) -> None:
    """Report the threads; an engine lowers them to its quota of processors, unless `OMP_NUM_THREADS` sets them."""
    worth = limits.threads()
    quota = "" if limits.quota is None else f", whose quota is {limits.quota.processors:g} ({limits.quota.file})"
    where = f"{limits.usable_processors} processors{quota}"
    most = worth or limits.usable_processors
    if num_threads > most and (worth is None or os.environ.get(THREADS)):
        fix = f"set `{THREADS}` to {most}: threads that wait for each other's processor cost several times more"
        reporter.warn("threads", f"{num_threads} threads on {where}", fix=fix)
    else:
        reporter.ok("threads", f"{min(num_threads, most)} on {where}")


def _examine_memory_limit(reporter: Reporter, limits: HostLimits) -> None:
    """Report the limit of a container, which the engine sizes its KV cache by."""
    memory = limits.memory
    if memory is not None:
        found = f"this container may use {size(memory.limit)}, of which {size(memory.free)} are free ({memory.file})"
        reporter.ok("memory limit", found)
