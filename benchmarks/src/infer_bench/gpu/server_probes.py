"""Probes of a server under load, and what they must show: its health, its counters, its memory. Sends it no work."""

import asyncio
import time
from collections.abc import Mapping
from contextlib import suppress
from typing import NamedTuple

import psutil
import torch
from prometheus_client.parser import text_string_to_metric_families

from infer_bench.client.http import BrokenReplyError, fetch, get_latency_s
from infer_bench.gpu.device_memory import used_memory
from infer_bench.gpu.parts import Finding
from infer_bench.server.processes import processes_behind, resident_memory

HEALTH_PERIOD_S = 0.05
HEALTH_TIMEOUT_S = 5.0
IDLE_TIMEOUT_S = 5.0
MIB = 2**20
DEVICE_GROWTH_BYTES = 64 * MIB

COUNTS = {
    "num_running": ("num_requests_running", ""),
    "num_waiting": ("num_requests_waiting", ""),
    "held_blocks": ("kv_blocks", "held"),
    "cached_blocks": ("kv_blocks", "cached"),
    "free_blocks": ("kv_blocks", "free"),
    "leaked_blocks": ("num_leaked_blocks", ""),
    "num_failed": ("num_failed_requests_total", ""),
    "num_preemptions": ("num_preemptions_total", ""),
    "num_generated": ("generation_tokens_total", ""),
}
"""What is read of `/metrics`: the metric, and its label `state`. Cached blocks are free, but keep a prefix."""

Counts = dict[str, int]
"""By the keys of `COUNTS`."""


class MemoryUse(NamedTuple):
    """Memory in use at one moment; None where it cannot be read.

    Attributes:
        device_bytes: of the whole device, by all processes.
        host_bytes: of the server's processes.
    """

    device_bytes: int | None = None
    host_bytes: int | None = None


async def poll_health(url: str, latencies_s: list[float], failures: list[str]) -> None:
    """Ask `/health` twenty times a second until cancelled."""
    while True:
        try:
            async with asyncio.timeout(HEALTH_TIMEOUT_S):
                latencies_s.append(await get_latency_s(url, "/health"))
        except (OSError, RuntimeError, BrokenReplyError) as error:  # a timeout is an `OSError`
            failures.append(f"{type(error).__name__}: {error}")
        await asyncio.sleep(HEALTH_PERIOD_S)


async def poll_memory(url: str, device: torch.device, load_s: float, memory: dict[str, MemoryUse]) -> None:
    """Read the memory in the `middle` and at the `end` of a load of `load_s` seconds that begins now."""
    began_s = time.monotonic()
    for name, after_s in (("middle", load_s / 2), ("end", load_s)):
        await asyncio.sleep(began_s + after_s - time.monotonic())
        memory[name] = await read_memory(url, device)


async def read_memory(url: str, device: torch.device) -> MemoryUse:
    """Return the memory in use now."""
    device_bytes = used_memory(device) if device.type == "cuda" else None
    return MemoryUse(device_bytes=device_bytes, host_bytes=await asyncio.to_thread(_host_bytes, url))


def _host_bytes(url: str) -> int | None:
    with suppress(OSError, RuntimeError, ValueError, psutil.Error):  # the server has ended, or the system tells nothing
        return resident_memory(processes_behind(url)).total_bytes
    return None


async def wait_until_idle(url: str) -> Counts | None:
    """Return the counts of the server once it is idle, or its last counts if it does not become idle."""
    until_s = time.monotonic() + IDLE_TIMEOUT_S
    while True:
        counts = await read_counts(url)
        if counts is None or is_idle(counts) or time.monotonic() >= until_s:
            return counts
        await asyncio.sleep(0.1)


async def read_counts(url: str) -> Counts | None:
    """Return what `/metrics` says; None if the server does not answer."""
    try:
        async with asyncio.timeout(IDLE_TIMEOUT_S):
            status, body = await fetch(url, "/metrics")
    except (OSError, BrokenReplyError):
        return None
    return parse_counts(body.decode()) if status == 200 else None


def parse_counts(text: str) -> Counts:
    """Return the counts in a reply of `/metrics`.

    Raises:
        KeyError: a metric is missing.
    """
    values = {
        (sample.name.removeprefix("infer:"), sample.labels.get("state", "")): int(sample.value)
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if sample.name.startswith("infer:")
    }
    return {name: values[key] for name, key in COUNTS.items()}


def is_idle(counts: Counts) -> bool:
    """Return whether no request runs, waits or holds a block, and no block is lost."""
    return not any(counts[name] for name in ("num_running", "num_waiting", "held_blocks", "leaked_blocks"))


def judge_health(latencies_s: list[float], failures: list[str]) -> Finding:
    """Judge whether `/health` was asked, and was answered each time."""
    found = f"{len(latencies_s)} answers"
    found += f", the slowest in {milliseconds(max(latencies_s))} ms" if latencies_s else ""
    found += f", {len(failures)} failed ({first_line(failures[0])})" if failures else ""
    return Finding("/health under load", found, wanted="all", holds=bool(latencies_s) and not failures)


def judge_idle(before: Counts | None, after: Counts | None) -> Finding:
    """Judge whether the load leaves nothing behind: no request, no held block, no lost block."""
    what, wanted = "running, waiting, KV blocks held after", "0, 0, 0"
    if after is None:
        return Finding(what, "the server does not answer", wanted=wanted, holds=False)
    num_blocks = _num_blocks(after)
    found = f"{after['num_running']}, {after['num_waiting']}, {after['held_blocks']} of {num_blocks}"
    found += f", {after['leaked_blocks']} leaked" if after["leaked_blocks"] else ""
    holds = is_idle(after) and before is not None and _num_blocks(before) == num_blocks
    return Finding(what, found, wanted=wanted, holds=holds)


def judge_memory(memory: Mapping[str, MemoryUse], *, most_host_growth: float | None) -> Finding:
    """Judge whether the device has as much in use `after` the load as `before`, and the host grew only a little.

    A GPU's allocator keeps what it once reserved, so the server must have computed such steps before the load. The host
    may grow by the share `most_host_growth` from the `middle` of the load to its `end`; None judges nothing.
    """
    before, middle, end, after = (memory.get(name, MemoryUse()) for name in ("before", "middle", "end", "after"))
    found, bounds, verdicts = [], [], []
    if before.device_bytes is not None and after.device_bytes is not None:
        growth = after.device_bytes - before.device_bytes
        found.append(f"device {growth / MIB:+.0f} MiB")
        bounds.append(f"device within {DEVICE_GROWTH_BYTES // MIB} MiB")
        verdicts.append(abs(growth) <= DEVICE_GROWTH_BYTES)
    if middle.host_bytes and end.host_bytes:
        share = end.host_bytes / middle.host_bytes - 1
        found.append(f"host {share:+.1%}")
        if most_host_growth is not None:
            bounds.append(f"host up to {most_host_growth:+.0%}")
            verdicts.append(share <= most_host_growth)
    return Finding(
        "growth of memory",
        ", ".join(found) or "cannot be read",
        wanted=", ".join(bounds),
        holds=all(verdicts) if verdicts else None,
    )


def milliseconds(seconds: float | None) -> str:
    """Return `seconds` in milliseconds, or a dash."""
    if seconds is None:
        return "-"
    return f"{seconds * 1e3:.0f}" if seconds >= 0.1 else f"{seconds * 1e3:.3g}"


def first_line(text: str) -> str:
    """Return `text` in one short line."""
    line = " ".join(text.split())
    return line if len(line) <= 80 else f"{line[:77]}..."


def _num_blocks(counts: Counts) -> int:
    return counts["held_blocks"] + counts["cached_blocks"] + counts["free_blocks"]
