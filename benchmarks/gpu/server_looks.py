"""Looks at a server from outside: its health, its metrics, its memory. Sends it no work; judges nothing."""

import asyncio
import time
from contextlib import suppress

import psutil
import torch

from counting_client import get_latency_s
from gpu.server_findings import IdleLook, MemoryLook
from http_client import BrokenReplyError, fetch
from server_processes import processes_behind, resident_memory

HEALTH_PERIOD_S = 0.05
HEALTH_TIMEOUT_S = 5.0
IDLE_TIMEOUT_S = 5.0


async def watch_health(url: str, latencies_s: list[float], failures: list[str]) -> None:
    """Ask `/health` twenty times a second until cancelled."""
    while True:
        try:
            async with asyncio.timeout(HEALTH_TIMEOUT_S):
                latencies_s.append(await get_latency_s(url, "/health"))
        except (OSError, RuntimeError) as error:  # a timeout is an `OSError`
            failures.append(f"{type(error).__name__}: {error}")
        await asyncio.sleep(HEALTH_PERIOD_S)


async def watch_memory(url: str, device: torch.device, load_s: float, memory: dict[str, MemoryLook]) -> None:
    """Look in the `middle` and at the `end` of a load of `load_s` seconds that begins now."""
    began_s = time.monotonic()
    for name, after_s in (("middle", load_s / 2), ("end", load_s)):
        await asyncio.sleep(began_s + after_s - time.monotonic())
        memory[name] = await look_at_memory(url, device)


async def look_at_memory(url: str, device: torch.device) -> MemoryLook:
    """Return what is in use now: of the host by the server at `url`, of `device` by anybody."""
    device_bytes = None
    if device.type == "cuda":
        free, total = torch.cuda.mem_get_info(device)
        device_bytes = total - free
    return MemoryLook(device_bytes=device_bytes, host_bytes=await asyncio.to_thread(_host_bytes, url))


def _host_bytes(url: str) -> int | None:
    """Return what the server's processes take; None where they are gone, or the system does not say."""
    with suppress(OSError, RuntimeError, ValueError, psutil.Error):
        return resident_memory(processes_behind(url)).total_bytes
    return None


async def when_idle(url: str) -> IdleLook | None:
    """Return the first look at an idle server, or the last one at a server that does not become so."""
    until_s = time.monotonic() + IDLE_TIMEOUT_S
    while True:
        look = await look_at_metrics(url)
        if look is None or look.is_idle or time.monotonic() >= until_s:
            return look
        await asyncio.sleep(0.1)


async def look_at_metrics(url: str) -> IdleLook | None:
    """Return what `/metrics` says; None: nobody answers."""
    try:
        async with asyncio.timeout(IDLE_TIMEOUT_S):
            status, body = await fetch(url, "/metrics")
    except (OSError, BrokenReplyError):
        return None
    return IdleLook.from_metrics(body.decode()) if status == 200 else None
