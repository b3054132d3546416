"""`prepare_gpu`: makes Triton ready for a GPU before its first kernel, or says in one line why it cannot be.

capability   kernels are made for 8.0 and later: earlier ones have no bf16 arithmetic
cache        Triton keeps compiled kernels in files, and cannot start where it cannot write them
assembler    code of an assembler of CUDA 13 has a format later than drivers for CUDA 12; Triton has one of CUDA 12 too
launcher     Triton compiles a C file for Python when it is first used
"""

import atexit
import logging
import os
import shutil
import sysconfig
import tempfile
from pathlib import Path
from typing import Any

import torch

from infer_kernels.cpu.compilation import cache_folder as cpu_cache_folder
from infer_kernels.optional_triton import HAS_TRITON, TRITON_MISSING, driver, triton

logger = logging.getLogger(__name__)

LEAST_CAPABILITY = (8, 0)
"""The least compute capability that the Triton kernels are made for."""
CACHE_VARIABLE = "TRITON_CACHE_DIR"
ASSEMBLER_VARIABLE = "TRITON_PTXAS_BLACKWELL_PATH"


class GpuUnusableError(ValueError):
    """Triton cannot compute on this machine's GPU; the message says what is missing."""


def prepare_gpu(device: torch.device, *, driver_cuda: tuple[int, int] | None) -> None:
    """Let Triton prepare itself for `device`, a GPU, now instead of in the first request.

    Processes that are started later inherit what is changed: it is in the environment.

    Args:
        device: the GPU.
        driver_cuda: the newest CUDA that its driver supports, such as (12, 4); None: unknown.

    Raises:
        GpuUnusableError: kernels cannot be compiled or launched on it.
    """
    if not HAS_TRITON:
        raise GpuUnusableError(f'{TRITON_MISSING}; or compute on the CPU with `device="cpu"`.')
    properties = torch.cuda.get_device_properties(device)
    require_capability((properties.major, properties.minor), properties.name)
    use_writable_cache()
    if driver_cuda is not None:
        use_assembler_for_driver(driver_cuda[0])
    require_launcher()


def require_capability(capability: tuple[int, int], name: str) -> None:
    """Refuse GPUs that the kernels are not made for, before anything is read.

    Raises:
        GpuUnusableError: the compute capability is too low.
    """
    if capability < LEAST_CAPABILITY:
        found, least = (".".join(map(str, each)) for each in (capability, LEAST_CAPABILITY))
        raise GpuUnusableError(
            f"{name} has compute capability {found}, and kernels are made for {least} and later (Ampere, 2020); "
            '`device="cpu"` computes on the CPU.'
        )


def use_writable_cache() -> None:
    """Let compiled kernels be kept where this process can write: beside those for CPUs, or in a temporary folder.

    Raises:
        GpuUnusableError: not even the folder for temporary files can be written.
    """
    folder = cache_folder()
    refused = why_unwritable(folder)
    if refused is None:
        return
    why = f"Triton's cache {folder} cannot be written ({refused})"
    taken = _folder_beside_cpu_kernels()
    if taken is None or why_unwritable(taken) is not None:
        try:
            taken = Path(tempfile.mkdtemp(prefix="infer-triton-"))
        except OSError as error:
            raise GpuUnusableError(
                f"{why}, nor can a folder for temporary files; set `{CACHE_VARIABLE}` to a folder that can be written."
            ) from error
        atexit.register(shutil.rmtree, taken, ignore_errors=True)
        why += ": kernels are compiled at every start"
    os.environ[CACHE_VARIABLE] = str(taken)
    logger.warning("%s; %s is used. Set `%s` to a folder that can be written", why, taken, CACHE_VARIABLE)


def why_unwritable(folder: Path) -> str | None:
    """Return why files cannot be made in a folder, or written as on a full disk; None: they can."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder) as file:
            file.write(b"\0" * 4096)
            file.flush()
            return None
    except OSError as error:
        return error.strerror or str(error)


def _folder_beside_cpu_kernels() -> Path | None:
    """Return a folder in the cache of the kernels for CPUs; None where that has no place."""
    try:
        return cpu_cache_folder() / "triton"
    except RuntimeError:  # there is no home
        return None


def use_assembler_for_driver(cuda_of_driver: int) -> None:
    """Let Triton assemble code that a driver for a major version of CUDA loads, if it has an assembler that does.

    For later architectures it takes the newer one of its two, whose code has another format from CUDA 13 on; drivers
    for CUDA 12 refuse it as an invalid kernel image.
    """
    older, newer = triton.knobs.nvidia.ptxas, triton.knobs.nvidia.ptxas_blackwell
    if ASSEMBLER_VARIABLE in os.environ or not _major(older) <= cuda_of_driver < _major(newer):
        return
    os.environ[ASSEMBLER_VARIABLE] = older.path
    logger.info("The driver is for CUDA %d, so kernels are assembled by ptxas %s", cuda_of_driver, older.version)


def _major(assembler: Any) -> int:
    """Return the major version of CUDA that an assembler is of."""
    return int(assembler.version.partition(".")[0])


def require_launcher() -> None:
    """Let Triton prepare its launcher for this machine's GPU.

    Raises:
        GpuUnusableError: it cannot: it compiles a C file for Python when it is first used.
    """
    try:
        _ = driver.active.utils
    except Exception as error:
        compiler = os.environ.get("CC") or shutil.which("clang") or shutil.which("gcc")
        header = Path(sysconfig.get_path("include"), "Python.h")
        raise GpuUnusableError(
            "Triton cannot prepare its launcher, for which it compiles a C file when it is first used. "
            f"C compiler (`CC`, or clang or gcc in `PATH`): {compiler or 'none'}. Python's headers: {header}, "
            f"{'there' if header.exists() else 'missing'}. Install what is missing, such as Debian's packages gcc and "
            f"python3-dev. Triton says: {error}"
        ) from error


def cache_folder() -> Path:
    """Return the folder that keeps compiled Triton kernels."""
    return Path(triton.knobs.cache.dir)
