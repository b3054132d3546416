"""The GPUs that the system shows, the CUDA of their driver, and what `CUDA_VISIBLE_DEVICES` hides. Needs no torch."""

import ctypes
from pathlib import Path

VISIBLE_DEVICES = "CUDA_VISIBLE_DEVICES"
WSL_NODE = "dxg"
"""The GPU of Windows inside WSL2, of whichever maker; there is no node of NVIDIA's driver beside it."""


def find_gpu_node(devices: Path = Path("/dev")) -> Path | None:
    """Return the first node of a GPU in `devices`, whether its driver works or not; None: there is none.

    A container that was given one GPU of several may have `nvidia1` and no `nvidia0`.
    """
    nodes = [path for path in devices.glob("nvidia[0-9]*") if path.name.removeprefix("nvidia").isdigit()]
    if nodes:
        return min(nodes, key=lambda path: int(path.name.removeprefix("nvidia")))
    return devices / WSL_NODE if (devices / WSL_NODE).exists() else None


def describe_node(node: Path) -> str:
    """Return what a node of `find_gpu_node` says there is, as the object of a sentence."""
    return f"a GPU in WSL2, {node}" if node.name == WSL_NODE else f"an NVIDIA GPU, {node}"


def explain_hidden(visible_devices: str | None, *, num_usable: int) -> str:
    """Return how `CUDA_VISIBLE_DEVICES` hides GPUs, as a sentence without its full stop; empty if it does not.

    The driver reads the names up to the first one that it does not know, and hides all others. A name is a number, or
    begins with `GPU-` or `MIG-`; of MIG slices a process sees one at most, however many are named.

    Args:
        visible_devices: the variable; None: not set.
        num_usable: GPUs that torch can use.
    """
    if visible_devices is None:
        return ""
    variable = f"`{VISIBLE_DEVICES}` is {visible_devices!r}"
    names = [name.strip() for name in visible_devices.split(",")]
    if names[0] in ("", "-1"):
        return f"{variable}, which hides every GPU"
    if len(names) <= num_usable:
        return ""
    why = "a name that the driver does not know hides itself and those after it"
    if any(name.startswith("MIG-") for name in names):
        why = "a process sees one MIG slice at most, and none whose name the driver does not know"
    usable = f"{num_usable} of them can be used" if num_usable else "none of them can be used"
    return f"{variable}, which names {len(names)}, and {usable}: {why}"


def ask_driver() -> tuple[tuple[int, int] | None, str]:
    """Return (the newest CUDA that the driver supports, ""), or (None, the reason why it does not say)."""
    try:
        library = ctypes.CDLL("libcuda.so.1")
    except OSError as error:
        return None, str(error)
    version = ctypes.c_int()
    code = library.cuDriverGetVersion(ctypes.byref(version))
    if code != 0:
        return None, f"cuDriverGetVersion returns {code}"
    return (version.value // 1000, version.value % 1000 // 10), ""
