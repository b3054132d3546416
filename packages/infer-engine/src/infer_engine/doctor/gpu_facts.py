"""Facts that the system, the driver and torch tell of NVIDIA GPUs, and the reason why torch cannot use one."""

import re
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

from infer_engine.gpu_visibility import WSL_NODE, ask_driver, describe_node, explain_hidden, find_gpu_node

WSL_LIBRARY = Path("/usr/lib/wsl/lib/libcuda.so.1")
"""The driver of Windows as WSL2 shows it: there if that driver is NVIDIA's."""
SMI_TIMEOUT_S = 4.0
EXCLUSIVE = "Exclusive_Process"
"""The compute mode of a GPU that takes one process at a time."""
_SMI_FIELDS = "name,driver_version,compute_cap,memory.total,memory.used,compute_mode,mig.mode.current"
_DRIVER_FILE = Path("/proc/driver/nvidia/version")
NO_GPU = "No CUDA GPUs are available"
"""Message of torch if the driver works and shows it no GPU."""
FIXES: Mapping[str, str] = MappingProxyType(
    {
        "Error 802": "start `nvidia-fabricmanager`, of the driver's version, which connects the GPUs of this machine",
        "Error 803": "restart the machine or the container: the driver and its libraries are of different versions",
        "Error 804": "take the folder `compat` of CUDA out of `LD_LIBRARY_PATH`: it is for data center GPUs only",
        "Error 999": "see `dmesg`; after a suspend, `rmmod nvidia_uvm` and `modprobe nvidia_uvm` as root",
    }
)
"""Remedies by the number in torch's message."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DriverFacts:
    """Facts of the driver, read without torch.

    Attributes:
        node: the file by which the system shows a GPU; None: it shows none.
        driver_version: version of the kernel's driver; None: there is none, or it does not say.
        driver_cuda: the newest CUDA that the driver supports, such as (13, 0); None if `libcuda_error` is set.
        libcuda_error: why the driver's library cannot be used; empty if it can.
        visible_devices: the variable `CUDA_VISIBLE_DEVICES`; None: not set.
    """

    node: str | None
    driver_version: str | None
    driver_cuda: tuple[int, int] | None
    libcuda_error: str
    visible_devices: str | None

    @property
    def shows_gpu(self) -> bool:
        """Whether there is an NVIDIA GPU, usable or not: in WSL2 any GPU has a node, and NVIDIA's a driver too."""
        return self.node is not None and not (self.is_wsl and self.libcuda_error and not WSL_LIBRARY.exists())

    @property
    def is_wsl(self) -> bool:
        """Whether the GPU is that of Windows around WSL2."""
        return self.node is not None and Path(self.node).name == WSL_NODE

    def describe(self) -> str:
        """Return which GPU the system shows, as the object of a sentence."""
        return "no NVIDIA GPU" if self.node is None else describe_node(Path(self.node))

    def as_json(self) -> dict[str, Any]:
        """Return the facts for a bug report."""
        return asdict(self)


def read_driver(visible_devices: str | None) -> DriverFacts:
    """Ask the system and the driver."""
    node = find_gpu_node()
    driver_cuda, error = ask_driver()
    try:
        text = _DRIVER_FILE.read_text(encoding="utf-8", errors="replace")
    except OSError:
        text = ""
    version = re.search(r"(?:Kernel Module|NVRM version:).*?\s(\d+\.\d+(?:\.\d+)?)", text)
    return DriverFacts(
        node=None if node is None else str(node),
        driver_version=version[1] if version else None,
        driver_cuda=driver_cuda,
        libcuda_error=error,
        visible_devices=visible_devices,
    )


def explain_unusable(
    driver: DriverFacts, *, wheel_cuda: str | None, torch_says: str, has_mig: bool = False
) -> tuple[str, str]:
    """Return the reason why torch cannot use the GPU that is there, and a remedy.

    Args:
        driver: facts of the driver.
        wheel_cuda: the CUDA that torch was built for, such as `13.0`; None: it was built for CPUs.
        torch_says: the message with which its start of CUDA fails.
        has_mig: a GPU is to be divided into slices.
    """
    if wheel_cuda is None:
        return "torch was built for CPUs", "install a torch wheel for CUDA"
    hidden = explain_hidden(driver.visible_devices, num_usable=0)
    if hidden.endswith("hides every GPU"):
        return hidden, "unset it, or name the GPUs to use"
    if driver.libcuda_error:
        found = f"the driver's library libcuda.so.1 cannot be loaded: {driver.libcuda_error}"
        if driver.is_wsl:
            return found, "install NVIDIA's driver in Windows, and none in Linux; it is found in /usr/lib/wsl/lib"
        return found, "install the driver; start a container with `--gpus all`"
    major = int(wheel_cuda.partition(".")[0])
    # Within a major version torch runs on a driver of an earlier minor one.
    if driver.driver_cuda is not None and driver.driver_cuda[0] < major:
        known = ".".join(map(str, driver.driver_cuda))
        of = f" {driver.driver_version}" if driver.driver_version else ""
        found = f"the driver{of} knows CUDA up to {known}, and torch was built for {wheel_cuda}"
        fix = f"upgrade the driver, or install a torch wheel for CUDA {driver.driver_cuda[0]}, as docs/gpu.md says"
        return found, fix
    if NO_GPU in torch_says:
        if hidden:
            return hidden, "name GPUs as `nvidia-smi -L` lists them, or unset it"
        if has_mig:
            fix = "make a slice: `nvidia-smi mig -cgi ... -C`, or give the container one"
            return "MIG is enabled, and no slice of the GPU is visible here", fix
    fixes = [fix for error, fix in FIXES.items() if error in torch_says]
    fix = fixes[0] if fixes else "see what `nvidia-smi` says; the GPU may need a reset"
    return f"torch cannot start CUDA: {torch_says}", fix


def has_mig(told: Sequence[Mapping[str, str]]) -> bool:
    """Return whether a GPU is in MIG mode, by the answer of `ask_nvidia_smi`."""
    return any(gpu["mig.mode.current"] == "Enabled" for gpu in told)


def is_exclusive(told: Sequence[Mapping[str, str]]) -> bool:
    """Return whether a GPU takes one process at a time, by the answer of `ask_nvidia_smi`."""
    return any(gpu["compute_mode"] == EXCLUSIVE for gpu in told)


def is_slice(name: str) -> bool:
    """Return whether the GPU that torch calls `name` is a MIG slice, such as `NVIDIA A100-SXM4-40GB MIG 1g.5gb`."""
    return re.search(r"\bMIG \d", name) is not None


def ask_nvidia_smi() -> list[dict[str, str]]:
    """Return the fields that `nvidia-smi` prints of each GPU, by their names; nothing if it does not answer."""
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
