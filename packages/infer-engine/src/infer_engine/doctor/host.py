"""Facts about the host, from the standard library alone: they are known even where torch cannot be imported."""

import importlib.metadata
import os
import platform
import re
import shutil
import sysconfig
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from infer_engine.host_limits import HostLimits

OUR_PACKAGES = ("infer-kernels", "infer-models", "infer-cache", "infer-engine", "infer-server", "infer-ray")
OTHER_PACKAGES = ("torch", "triton", "numpy", "safetensors", "tokenizers", "huggingface-hub", "msgspec", "litestar")
INSTRUCTION_SETS = ("avx2", "fma", "f16c", "avx512f", "avx512vl", "avx512_bf16", "avx512_fp16", "amx_bf16")
"""Instruction sets of x86-64 that the C++ kernels or PyTorch use, as /proc/cpuinfo spells them."""
ARM_INSTRUCTION_SETS = ("asimd", "asimdhp", "bf16", "sve", "sve2")

_VARIABLES = re.compile(
    r"(CUDA|NVIDIA|TRITON|TORCH|PYTORCH|OMP|GOMP|KMP|MKL|OPENBLAS|MALLOC|NCCL|INFER)_\w+"
    r"|CC|CXX|LD_LIBRARY_PATH|LD_PRELOAD|XDG_CACHE_HOME|HF_HOME|HF_HUB_CACHE|HF_HUB_OFFLINE"
)
SECRET_NAME = re.compile(r"KEY|TOKEN|SECRET|PASSWORD|PASSWD|CREDENTIAL|AUTH", re.IGNORECASE)
HIDDEN = "(set, not shown)"


def versions() -> dict[str, str | None]:
    """Return the versions of Python, of our packages and of those that matter to them; None: not installed."""
    found: dict[str, str | None] = {"python": f"{platform.python_version()} ({platform.python_implementation()})"}
    for name in (*OUR_PACKAGES, *OTHER_PACKAGES):
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            found[name] = None
    return found


def describe_system() -> dict[str, Any]:
    """Return the operating system, and whether this is a container."""
    try:
        distribution = platform.freedesktop_os_release().get("PRETTY_NAME")
    except OSError:
        distribution = None
    return {
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
        "distribution": distribution,
        "libc": " ".join(platform.libc_ver()),
        "is_container": Path("/.dockerenv").exists() or Path("/run/.containerenv").exists(),
    }


def describe_variables(environment: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Return the environment variables that change our programs; the values of secrets are hidden."""
    return {
        name: HIDDEN if SECRET_NAME.search(name) else value
        for name, value in sorted(environment.items())
        if _VARIABLES.fullmatch(name)
    }


def describe_processors(cpuinfo: str | None = None, *, limits: HostLimits) -> dict[str, Any]:
    """Return the CPU's model, its instruction sets, and how many of its processors this process may use."""
    text = _read(Path("/proc/cpuinfo")) if cpuinfo is None else cpuinfo
    fields = dict(re.findall(r"^(model name|flags|Features)\s*: (.*)$", text, re.MULTILINE))
    flags = set((fields.get("flags") or fields.get("Features") or "").split())
    return {
        "model": fields.get("model name") or platform.processor() or platform.machine(),
        "instruction_sets": [name for name in (*INSTRUCTION_SETS, *ARM_INSTRUCTION_SETS) if name in flags],
        "processors": os.cpu_count(),
        "usable_processors": limits.usable_processors,
        "cgroup_processors": None if limits.quota is None else limits.quota.processors,
    }


def describe_memory(*, limits: HostLimits) -> dict[str, int | None]:
    """Return bytes of memory: all, available, and the limit and the free rest of this process's cgroups, or None."""
    fields = dict(re.findall(r"^(MemTotal|MemAvailable): +(\d+) kB$", _read(Path("/proc/meminfo")), re.MULTILINE))
    total, available = (int(fields[name]) * 1024 if name in fields else None for name in ("MemTotal", "MemAvailable"))
    limit = limits.memory
    return {
        "total": total,
        "available": available,
        "cgroup_limit": None if limit is None else limit.limit,
        "cgroup_free": None if limit is None else limit.free,
    }


def describe_compilers(environment: Mapping[str, str] = os.environ) -> dict[str, str | bool | None]:
    """Return the paths of compilers, None where not found, and whether Python's headers are there."""
    path = environment.get("PATH")
    found: dict[str, str | bool | None] = {
        name: shutil.which(name, path=path) for name in ("cc", "gcc", "clang", "c++", "g++", "clang++", "ptxas")
    }
    return found | {"Python.h": Path(sysconfig.get_path("include"), "Python.h").exists()}


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
