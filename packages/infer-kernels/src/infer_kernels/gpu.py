"""A device as launchers see it: its architecture and how many programs it runs at once."""

import os
import shutil
import sysconfig
from dataclasses import dataclass
from pathlib import Path

import torch

from infer_kernels.optional_triton import driver, triton


@dataclass(frozen=True, slots=True)
class Gpu:
    """A GPU's compute capability, such as (9, 0), and its number of multiprocessors."""

    capability: tuple[int, int]
    num_sms: int


class LauncherUnusableError(ValueError):
    """Triton cannot launch kernels on this machine's GPU; the message says what is missing."""


def require_launcher() -> None:
    """Let Triton prepare its launcher for this machine's GPU now, instead of in the first request.

    Raises:
        LauncherUnusableError: it cannot: it compiles a C file for Python when it is first used.
    """
    try:
        _ = driver.active.utils
    except Exception as error:
        compiler = os.environ.get("CC") or shutil.which("clang") or shutil.which("gcc")
        header = Path(sysconfig.get_path("include"), "Python.h")
        raise LauncherUnusableError(
            "Triton cannot prepare its launcher, for which it compiles a C file when it is first used. "
            f"C compiler (`CC`, or clang or gcc in `PATH`): {compiler or 'none'}. Python's headers: {header}, "
            f"{'there' if header.exists() else 'missing'}. Install what is missing, such as Debian's packages gcc and "
            f"python3-dev. Triton says: {error}"
        ) from error


def cache_folder() -> Path:
    """Return the folder that keeps compiled Triton kernels."""
    return Path(triton.knobs.cache.dir)


def describe_gpu(device: torch.device) -> Gpu:
    """Describe `device`, or what stands in for a GPU where Triton interprets or only compiles."""
    if device.type == "cuda":
        properties = torch.cuda.get_device_properties(device)
        return Gpu((properties.major, properties.minor), properties.multi_processor_count)
    if triton.knobs.runtime.interpret:
        return Gpu((9, 0), 4)
    simulated = driver.active
    properties = simulated.utils.get_device_properties(simulated.get_current_device())
    return Gpu(divmod(simulated.get_current_target().arch, 10), properties["multiprocessor_count"])
