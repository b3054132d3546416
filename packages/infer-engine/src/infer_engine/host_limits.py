"""The limits of this process on its machine: memory and processors, as the cgroups of its container limit them.

Reads /proc and /sys, from the standard library alone. Of all cgroups from this process's own up to the highest one that
is mounted here, the one that leaves the least decides; what a container cannot see of the groups above its own, version
1 tells in `hierarchical_memory_limit`. Weights and requests (`cpu.weight`, `cpu.shares`, `memory.low`) limit nothing.
"""

import contextlib
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path("/")
_ESCAPE = re.compile(r"\\([0-7]{3})")
_NO_LIMIT = 1 << 60
"""Bytes from which on a limit is none: version 1 writes a number near 2^63 for it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryLimit:
    """The memory that a cgroup may use.

    Attributes:
        file: the file with the limit.
        limit: bytes in all.
        used: bytes in use that the system cannot take back; most of the page cache it can.
    """

    file: Path
    limit: int
    used: int

    @property
    def free(self) -> int:
        """Bytes that are left."""
        return max(0, self.limit - self.used)


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessorLimit:
    """The processors' worth of time that a cgroup may use, such as 1.5, and the file with it."""

    file: Path
    processors: float


@dataclass(frozen=True, slots=True, kw_only=True)
class HostLimits:
    """The limits that hold for this process.

    Attributes:
        memory: the one that leaves the least; None: only the machine's memory limits it.
        quota: the smallest quota of time; None: there is none.
        usable_processors: on which it may run.
    """

    memory: MemoryLimit | None
    quota: ProcessorLimit | None
    usable_processors: int

    def threads(self, num_parts: int = 1) -> int | None:
        """Return the threads that a quota divided among `num_parts` processes is worth; None: it limits nothing.

        A fraction is rounded down: the threads of a step wait for each other, so that one which the quota stops for the
        rest of its period stops all, and what is left serves the other threads of the engine and its server.
        """
        if self.quota is None or self.quota.processors >= self.usable_processors:
            return None
        return max(1, int(self.quota.processors / num_parts))

    def describe(self) -> str:
        """Return one line for a log; empty where nothing but the machine itself limits this process."""
        parts = []
        if self.memory is not None:
            memory = self.memory
            parts.append(f"{_mib(memory.limit)} of memory, of which {_mib(memory.free)} are free ({memory.file})")
        if self.quota is not None:
            parts.append(f"{self.quota.processors:g} processors of {self.usable_processors} ({self.quota.file})")
        return f"The container may use {' and '.join(parts)}" if parts else ""


def read_host_limits(root: Path = ROOT) -> HostLimits:
    """Return the limits of this process; files are looked for under `root`."""
    memory: list[MemoryLimit] = []
    quotas: list[ProcessorLimit] = []
    for folder, is_v2 in _groups(root, "memory"):
        memory += _memory_limits(folder, is_v2=is_v2)
    for folder, is_v2 in _groups(root, "cpu"):
        quotas += _quotas(folder, is_v2=is_v2)
    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return HostLimits(
        memory=min(memory, key=lambda each: each.free, default=None),
        quota=min(quotas, key=lambda each: each.processors, default=None),
        usable_processors=usable,
    )


def _groups(root: Path, controller: str) -> Iterator[tuple[Path, bool]]:
    """Yield the folders of this process's cgroups with a controller, from its own up, and whether each is version 2.

    Both versions may be mounted side by side, with each controller in one of them; the other has no files of it.
    """
    own = _own_paths(root, controller)
    for line in _lines(root / "proc/self/mountinfo"):
        left, _, right = line.partition(" - ")
        fields, kind = left.split(), right.split()
        if len(fields) < 5 or len(kind) < 3 or kind[0] not in ("cgroup", "cgroup2"):
            continue
        is_v2 = kind[0] == "cgroup2"
        if (not is_v2 and controller not in kind[2].split(",")) or is_v2 not in own:
            continue
        top = root / _unescaped(fields[4]).lstrip("/")
        folder = top / _within(own[is_v2], mounted=_unescaped(fields[3]))
        while not folder.is_dir() and folder != top:  # a path of the host's, which is not mounted here
            folder = folder.parent
        yield folder, is_v2
        while folder != top:
            folder = folder.parent
            yield folder, is_v2


def _own_paths(root: Path, controller: str) -> dict[bool, str]:
    """Return the paths of this process's cgroups, by whether they are of version 2."""
    found = {}
    for line in _lines(root / "proc/self/cgroup"):
        number, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if number == "0" and not controllers:
            found[True] = path
        elif controller in controllers.split(","):
            found[False] = path
    return found


def _within(path: str, *, mounted: str) -> str:
    """Return a cgroup's `path` below the one that is `mounted`; empty where it is that one, or outside it.

    In a container the mount may be of the container's own cgroup while the path counts from the host's, or the path may
    count from a namespace of its own.
    """
    if mounted != "/" and (path == mounted or path.startswith(f"{mounted}/")):
        path = path[len(mounted) :]
    parts = [part for part in path.split("/") if part]
    return "" if ".." in parts else "/".join(parts)


def _memory_limits(folder: Path, *, is_v2: bool) -> list[MemoryLimit]:
    """Return the limits of one cgroup."""
    statistics = {name: int(value) for name, value in map(_pair, _lines(folder / "memory.stat")) if value.isdecimal()}
    files = ("memory.max", "memory.high") if is_v2 else ("memory.limit_in_bytes",)
    limits = [(folder / name, number) for name in files if (number := _number(folder / name)) is not None]
    if (above := statistics.get("hierarchical_memory_limit")) is not None:
        limits.append((folder / "memory.stat", above))
    in_use = _number(folder / ("memory.current" if is_v2 else "memory.usage_in_bytes")) or 0
    # Version 1 has its own numbers and, with this prefix, those with the groups below; version 2 only the latter.
    prefix = "" if is_v2 else "total_"
    cached = sum(statistics.get(prefix + name, 0) for name in ("inactive_file", "active_file"))
    mapped = statistics.get(prefix + ("file_mapped" if is_v2 else "mapped_file"), 0)  # such as libraries in use
    used = max(0, in_use - max(0, cached - mapped))
    return [MemoryLimit(file=file, limit=limit, used=used) for file, limit in limits if limit < _NO_LIMIT]


def _quotas(folder: Path, *, is_v2: bool) -> list[ProcessorLimit]:
    """Return the quota of one cgroup, if it has one."""
    if is_v2:
        file = folder / "cpu.max"
        quota, _, period = _text(file).partition(" ")
    else:
        file = folder / "cpu.cfs_quota_us"
        quota, period = _text(file), _text(folder / "cpu.cfs_period_us")
    if quota.isdecimal() and period.isdecimal() and int(quota) and int(period):
        return [ProcessorLimit(file=file, processors=round(int(quota) / int(period), 3))]
    return []


def _number(file: Path) -> int | None:
    """Return the number in a file; None for `max`, or without the file."""
    text = _text(file)
    return int(text) if text.isdecimal() else None


def _pair(line: str) -> tuple[str, str]:
    name, _, value = line.partition(" ")
    return name, value.strip()


def _unescaped(path: str) -> str:
    """Return a path of mountinfo, in which spaces are octal numbers."""
    return _ESCAPE.sub(lambda match: chr(int(match[1], 8)), path)


def _lines(file: Path) -> list[str]:
    return _text(file).splitlines()


def _text(file: Path) -> str:
    with contextlib.suppress(OSError):
        return file.read_text(encoding="utf-8", errors="replace").strip()
    return ""


def _mib(num_bytes: int) -> str:
    return f"{num_bytes / 2**20:,.0f} MiB"
