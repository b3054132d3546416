"""Facts about the host, from the standard library alone: they are known even where torch cannot be imported."""

import importlib.metadata
import os
import platform
import re
import shutil
import subprocess
import sysconfig
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from infer_engine.host_limits import HostLimits

OUR_PACKAGES = ("infer-kernels", "infer-models", "infer-cache", "infer-engine", "infer-server", "infer-ray")
OTHER_PACKAGES = ("torch", "triton", "numpy", "safetensors", "tokenizers", "huggingface-hub", "msgspec", "litestar")
INSTRUCTION_SETS = ("avx2", "fma", "f16c", "avx512f", "avx512vl", "avx512_bf16", "avx512_fp16", "amx_bf16")
"""Instruction sets of x86-64 that the C++ kernels or PyTorch use, as /proc/cpuinfo spells them."""
ARM_INSTRUCTION_SETS = ("asimd", "asimdhp", "asimddp", "i8mm", "bf16", "sve", "sve2", "sme")
_FEATURES_OF_MACOS = {
    "hw.optional.AdvSIMD": "asimd",
    "hw.optional.arm.FEAT_FP16": "asimdhp",
    "hw.optional.arm.FEAT_DotProd": "asimddp",
    "hw.optional.arm.FEAT_I8MM": "i8mm",
    "hw.optional.arm.FEAT_BF16": "bf16",
    "hw.optional.arm.FEAT_SME": "sme",
}
"""What `sysctl` calls the instruction sets of ARM on macOS, and Linux's names of them."""

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
        distribution = f"macOS {platform.mac_ver()[0]}" if platform.mac_ver()[0] else None
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
    """Return the CPU's model, its instruction sets, and how many of its processors this process may use.

    `performance_cores` counts the fast cores where there is no /proc and `sysctl` tells them apart (macOS), else None.
    """
    text = _read(Path("/proc/cpuinfo")) if cpuinfo is None else cpuinfo
    fields = dict(re.findall(r"^(model name|flags|Features|CPU implementer|CPU part)\s*: (.*)$", text, re.MULTILINE))
    told = {} if text else _ask_sysctl("machdep.cpu", "hw.optional", "hw.perflevel0")
    flags = set((fields.get("flags") or fields.get("Features") or "").split())
    flags |= {_FEATURES_OF_MACOS[name] for name in _FEATURES_OF_MACOS.keys() & told.keys() if told[name] == "1"}
    part = f", implementer {fields['CPU implementer']}, part {fields['CPU part']}" if "CPU part" in fields else ""
    fast = told.get("hw.perflevel0.physicalcpu")
    return {
        "model": fields.get("model name")
        or told.get("machdep.cpu.brand_string")
        or (platform.processor() or platform.machine()) + part,
        "instruction_sets": [name for name in (*INSTRUCTION_SETS, *ARM_INSTRUCTION_SETS) if name in flags],
        "processors": os.cpu_count(),
        "performance_cores": None if fast is None else int(fast),
        "usable_processors": limits.usable_processors,
        "cgroup_processors": None if limits.quota is None else limits.quota.processors,
    }


def describe_memory(meminfo: str | None = None, *, limits: HostLimits) -> dict[str, int | None]:
    """Return bytes of memory: all, available, and the limit and the free rest of this process's cgroups, or None."""
    text = _read(Path("/proc/meminfo")) if meminfo is None else meminfo
    fields = dict(re.findall(r"^(MemTotal|MemAvailable): +(\d+) kB$", text, re.MULTILINE))
    total, available = (int(fields[name]) * 1024 if name in fields else None for name in ("MemTotal", "MemAvailable"))
    if not text:
        total, available = _memory_of_macos()
    limit = limits.memory
    return {
        "total": total,
        "available": available,
        "cgroup_limit": None if limit is None else limit.limit,
        "cgroup_free": None if limit is None else limit.free,
    }


def _memory_of_macos() -> tuple[int | None, int | None]:
    """Return bytes of memory, and of what can be had at once: pages that are free, or inactive."""
    total = _ask_sysctl("hw.memsize").get("hw.memsize")
    told = _ask("vm_stat")
    page = re.search(r"page size of (\d+) bytes", told)
    pages = [int(count) for count in re.findall(r"^Pages (?:free|inactive): +(\d+)\.$", told, re.MULTILINE)]
    return (None if total is None else int(total), int(page[1]) * sum(pages) if page and len(pages) == 2 else None)


def _ask_sysctl(*names: str) -> dict[str, str]:
    """Return what `sysctl` of macOS says of names, or of all below them; those that it does not know are left out."""
    return dict(re.findall(r"^([\w.]+): (.*)$", _ask("sysctl", *names), re.MULTILINE))


def _ask(*command: str) -> str:
    """Return what a command prints; nothing where it is not there or takes long."""
    try:
        return subprocess.run(command, capture_output=True, check=False, text=True, timeout=5).stdout  # noqa: S603 - the system's
    except (OSError, subprocess.TimeoutExpired):
        return ""


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
