"""What this machine is, and what its device can do at best. Knows versions and rates; knows no kernel of ours."""

import platform
import shutil
import subprocess
from collections.abc import Callable
from dataclasses import asdict
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import torch

from ceilings import CeilingProbe, Ceilings
from gpu.parts import Finding, PartReport, Place

ROUNDS = 3
TINY_BYTES = 2**22
TINY_MATMUL = 64


def run(place: Place) -> PartReport:
    """Report the machine, and the ceilings for everything that comes after."""
    facts = machine_facts(place.device)
    ceilings = measure_ceilings(place.device)
    findings = [
        Finding(what="machine", found=one_line(facts)),
        Finding(what="a copy moves", found=f"{ceilings.copy_bytes_per_s / 1e9:.0f} GB/s, read and written"),
        Finding(what="a sum reads", found=f"{ceilings.read_bytes_per_s / 1e9:.0f} GB/s"),
        Finding(what="bf16 products make", found=f"{ceilings.operations_per_s / 1e12:.1f} TFLOP/s"),
    ]
    return PartReport(findings=findings, details={"machine": facts, "ceilings": asdict(ceilings)})


def measure_ceilings(device: torch.device) -> Ceilings:
    """Return the best of some rounds on `device`; on a CPU of so little that it says nothing."""
    if device.type == "cuda":
        probe = CeilingProbe(device, torch.bfloat16)
    else:
        probe = CeilingProbe(device, torch.bfloat16, num_bytes=TINY_BYTES, matmul_sizes=[TINY_MATMUL])
    for _ in range(ROUNDS):
        probe.measure()
    return probe.best


def machine_facts(device: torch.device) -> dict[str, Any]:
    """Return what a reader must know of the machine to compare its numbers with another's."""
    facts: dict[str, Any] = {
        "python": platform.python_version(),
        "torch": torch.__version__,
        "triton": _installed("triton"),
        "cuda": torch.version.cuda,
        "gpu": None,
        "driver": driver_version(),
    }
    if device.type == "cuda":
        properties = torch.cuda.get_device_properties(device)
        facts |= {
            "gpu": properties.name,
            "capability": f"{properties.major}.{properties.minor}",
            "multiprocessors": properties.multi_processor_count,
            "memory_gib": round(properties.total_memory / 2**30, 1),
            "l2_cache_mib": round(properties.L2_cache_size / 2**20, 1),
        }
    return facts


def one_line(facts: dict[str, Any]) -> str:
    """Return the few of `facts` that fit into a table."""
    device = f"{facts['gpu']} ({facts['memory_gib']} GiB), driver {facts['driver']}" if facts["gpu"] else "no GPU"
    return f"{device}, torch {facts['torch']}, triton {facts['triton']}, Python {facts['python']}"


def driver_version(find: Callable[[str], str | None] = shutil.which) -> str | None:
    """Return the version of the driver, None where its own tool is missing or knows of no GPU."""
    tool = find("nvidia-smi")
    if tool is None:
        return None
    command = [tool, "--query-gpu=driver_version", "--format=csv,noheader"]
    asked = subprocess.run(command, capture_output=True, text=True, check=False, timeout=30)  # noqa: S603 - a fixed command
    lines = asked.stdout.split()
    return lines[0] if asked.returncode == 0 and lines else None


def _installed(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None
