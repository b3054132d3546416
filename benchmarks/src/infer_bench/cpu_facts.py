"""Facts of the CPU for a result: its name, its generation where that is known, and its vector instructions."""

import platform
from pathlib import Path
from typing import Any

FEATURES = ("avx2", "avx512f", "avx512_bf16", "avx512_vnni", "amx_bf16", "amx_int8")
"""Flags of Linux that are noted where the CPU has them."""
AMD_GENERATIONS = {(25, False): "Zen 3", (25, True): "Zen 4", (26, True): "Zen 5"}
"""By CPU family and whether there is AVX512: hypervisors hide the rest of a model's name."""


def cpu_facts(cpuinfo: Path = Path("/proc/cpuinfo")) -> dict[str, Any]:
    """Return `cpu`, `cpu_generation` (None: unknown) and `cpu_features`, from the first processor in `cpuinfo`."""
    lines = cpuinfo.read_text().splitlines() if cpuinfo.exists() else []
    found: dict[str, str] = {}
    for name, _, value in (line.partition(":") for line in lines):
        found.setdefault(name.strip(), value.strip())
    flags = found.get("flags", "").split()
    generation = None
    if found.get("vendor_id") == "AuthenticAMD":
        generation = AMD_GENERATIONS.get((int(found.get("cpu family", "0")), "avx512f" in flags))
    return {
        "cpu": found.get("model name", platform.processor()),
        "cpu_generation": generation,
        "cpu_features": [feature for feature in FEATURES if feature in flags],
    }
