"""What every result carries: the machine, the versions, the command and the commit. Measures nothing."""

import json
import platform
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path
from typing import Any

import psutil
import torch

ROOT = Path(__file__).resolve().parent.parent


def environment() -> dict[str, Any]:
    """Return the machine, the versions, the command line and the commit of this run."""
    return {
        "command": " ".join(["python", *sys.argv]),
        "commit": _commit(),
        "cpu": _cpu_name(),
        "cores": psutil.cpu_count(logical=False),
        "torch_threads": torch.get_num_threads(),
        "memory_gib": round(psutil.virtual_memory().total / 2**30, 1),
        "gpu": torch.cuda.get_device_name() if torch.cuda.is_available() else None,
        "python": platform.python_version(),
        "torch": version("torch"),
        "infer_engine": version("infer-engine"),
    }


def save(name: str, result: dict[str, Any], folder: Path) -> Path:
    """Write `result` with its environment to `folder/name.json` and return the path."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{name}.json"
    path.write_text(json.dumps({"environment": environment(), **result}, indent=2) + "\n")
    return path


def _commit() -> str:
    command = ["git", "-C", str(ROOT), "describe", "--always", "--dirty", "--abbrev=12"]
    completed = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603 - a fixed command
    return completed.stdout.strip() or "unknown"


def _cpu_name() -> str:
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        for line in cpuinfo.read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor()
