"""What the system, the driver and torch say of NVIDIA GPUs, and why torch cannot use one."""

import ctypes
import re
import shutil
import subprocess
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

NODE = Path("/dev/nvidia0")
"""What the system shows of the first GPU, whether its driver works or not."""
SMI_TIMEOUT_S = 4.0
_SMI_FIELDS = "name,driver_version,compute_cap,memory.total,memory.used,compute_mode,mig.mode.current"
_DRIVER_FILE = Path("/proc/driver/nvidia/version")


@dataclass(frozen=True, slots=True, kw_only=True)
class DriverFacts:
    """What there is of a driver, without torch.

    Attributes:
        has_node: whether the system shows a GPU.
        driver_version: of the kernel's driver; None: there is none, or it does not say.
        driver_cuda: the newest CUDA that the driver knows, such as (13, 0); None if `libcuda_error` is set.
        libcuda_error: why the driver's library cannot be used; empty if it can.
        visible_devices: the variable `CUDA_VISIBLE_DEVICES`; None: not set.
    """

    has_node: bool
    driver_version: str | None
    driver_cuda: tuple[int, int] | None
    libcuda_error: str
    visible_devices: str | None

    def as_json(self) -> dict[str, Any]:
        """What a bug report says."""
        return asdict(self)


def read_driver(visible_devices: str | None) -> DriverFacts:
    """Ask the system and the driver."""
    driver_cuda, error = _ask_libcuda()
    try:
        text = _DRIVER_FILE.read_text(encoding="utf-8", errors="replace")
    except OSError:
        text = ""
    version = re.search(r"(?:Kernel Module|NVRM version:).*?\s(\d+\.\d+(?:\.\d+)?)", text)
    return DriverFacts(
        has_node=NODE.exists(),
        driver_version=version[1] if version else None,
        driver_cuda=driver_cuda,
        libcuda_error=error,
        visible_devices=visible_devices,
    )


def explain_unusable(driver: DriverFacts, *, wheel_cuda: str | None, torch_says: str) -> tuple[str, str]:
    """Return why torch cannot use the GPU that is there, and what to do about it.

    Args:
        driver: what there is.
        wheel_cuda: the CUDA that torch was built for, such as `13.0`; None: it was built for CPUs.
        torch_says: the message with which its start of CUDA fails.
    """
    if wheel_cuda is None:
        return "torch was built for CPUs", "install a torch wheel for CUDA"
    if driver.visible_devices is not None and driver.visible_devices.strip() in ("", "-1"):
        found = f"`CUDA_VISIBLE_DEVICES` is {driver.visible_devices!r}, which hides every GPU"
        return found, "unset it, or name the GPUs to use"
    if driver.libcuda_error:
        found = f"the driver's library libcuda.so.1 cannot be loaded: {driver.libcuda_error}"
        return found, "install the driver; start a container with `--gpus all`"
    wanted = tuple(int(part) for part in wheel_cuda.split(".")[:2])
    if driver.driver_cuda is not None and driver.driver_cuda < wanted:
        known = ".".join(map(str, driver.driver_cuda))
        of = f" {driver.driver_version}" if driver.driver_version else ""
        found = f"the driver{of} knows CUDA up to {known}, and torch was built for {wheel_cuda}"
        return found, f"upgrade the driver, or install a torch wheel for CUDA {known} or earlier"
    return f"torch cannot start CUDA: {torch_says}", "see what `nvidia-smi` says; the GPU may need a reset"


def ask_nvidia_smi() -> list[dict[str, str]]:
    """Return what `nvidia-smi` says of each GPU, by the names of its fields; nothing if it does not answer."""
    program = shutil.which("nvidia-smi")
    if program is None:
        return []
    command = [program, f"--query-gpu={_SMI_FIELDS}", "--format=csv,noheader"]
    try:
        answer = subprocess.run(command, capture_output=True, text=True, timeout=SMI_TIMEOUT_S, check=True)  # noqa: S603 - NVIDIA's program
    except (OSError, subprocess.SubprocessError):
        return []
    names = _SMI_FIELDS.split(",")
    rows = [[cell.strip() for cell in line.split(",")] for line in answer.stdout.splitlines()]
    return [dict(zip(names, row, strict=True)) for row in rows if len(row) == len(names)]


def _ask_libcuda() -> tuple[tuple[int, int] | None, str]:
    """Return (the newest CUDA that the driver knows, ""), or (None, why it does not say)."""
    try:
        library = ctypes.CDLL("libcuda.so.1")
    except OSError as error:
        return None, str(error)
    version = ctypes.c_int()
    code = library.cuDriverGetVersion(ctypes.byref(version))
    if code != 0:
        return None, f"cuDriverGetVersion returns {code}"
    return (version.value // 1000, version.value % 1000 // 10), ""
