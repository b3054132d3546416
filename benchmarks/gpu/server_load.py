"""The server on the device under 64 streams at once: how much it answers, how fast, and what is left of it afterwards.

A closed loop: each stream sends its next request when its last has ended, and none once the time is up. The server has
a process of its own and random weights of a real shape; the client is in this one. Before the load the same is done
for a few seconds and not counted: kernels are compiled, and the device's allocator learns how large steps are. Knows
when to do what; what it amounts to is said by `server_findings.py`.
"""

import asyncio
import gc
import os
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict
from pathlib import Path

import psutil
import torch

from gpu.device_memory import free_unreferenced
from gpu.parts import Finding, PartReport, Place
from gpu.server_findings import LoadResult
from gpu.server_looks import look_at_memory, look_at_metrics, watch_health, watch_memory, when_idle
from gpu.server_streams import ON_GPU, REHEARSAL, LoadPlan, ServerFailedError, closed_loop, planned_requests, warm_up
from own_server import serving
from server_facts import watching

OVERTIME_S = 2.0
"""A server that is still there so long after the part's deadline is killed."""
LOG_LINES = 30


def run(place: Place) -> PartReport:
    """Serve, load, look, and report; a server that fails is a finding."""
    plan = REHEARSAL if place.is_rehearsal else ON_GPU
    if place.seconds_left < plan.least_s:
        return PartReport(findings=[_left_out(plan, place.seconds_left)])
    _settle_on(place.device)
    report = PartReport(details={"plan": asdict(plan)})
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "server.log"
        try:
            _serve_and_load(place, plan, log, report)
        except ServerFailedError as error:
            report.findings.append(Finding(what="the server", found=str(error), wanted="serves", holds=False))
        lines = log.read_text(errors="replace").splitlines() if log.exists() else []
    report.details["last_log_lines"] = lines[-LOG_LINES:]
    if lines and any(finding.holds is False for finding in report.findings):
        report.findings.append(Finding(what="the server's last log line", found=lines[-1][-120:]))
    return report


def _serve_and_load(place: Place, plan: LoadPlan, log: Path, report: PartReport) -> None:
    """Add to `report` what is found of a server that is started for it.

    Raises:
        ServerFailedError: it did not start, or failed before the load.
    """
    flags = ("--device", str(place.device), "--shutdown-timeout", "3", *plan.flags)
    with killing_children_at(place.deadline_s + OVERTIME_S), _undisturbed_by_garbage(), ExitStack() as stack:
        began_s = time.perf_counter()
        with standard_error_to(log):
            try:
                server = stack.enter_context(serving(flags, shape=plan.shape))
            except RuntimeError as error:
                raise ServerFailedError(str(error)) from error
        started_s = time.perf_counter()
        asyncio.run(warm_up(server.url, plan))
        took = {"start_s": started_s - began_s, "warm_up_s": time.perf_counter() - started_s}
        report.details |= took | {"banner": server.banner.splitlines(), "flags": list(server.flags)}
        report.findings.append(
            Finding(
                what=f"server of {plan.shape}", found=f"up in {took['start_s']:.1f} s, warm in {took['warm_up_s']:.1f}"
            )
        )
        load_s = plan.load_s_within(place.seconds_left)
        if load_s is None:
            report.findings.append(_left_out(plan, place.seconds_left))
            return
        result = asyncio.run(load(server.url, plan, load_s=load_s, device=place.device))
    report.findings += result.findings()
    report.details |= result.as_json()


def _left_out(plan: LoadPlan, seconds_left: float) -> Finding:
    return Finding(what=f"{plan.num_streams} streams", found=f"left out: {max(0.0, seconds_left):.0f} s were left")


async def load(url: str, plan: LoadPlan, *, load_s: float, device: torch.device) -> LoadResult:
    """Load an idle server for `load_s` seconds, wait for the last answers, and look at it before, meanwhile and after.

    Args:
        url: the server's.
        plan: what to ask.
        load_s: seconds in which streams begin requests.
        device: what the server computes on; its memory is looked at if it is a GPU.
    """
    idle_before = await when_idle(url)
    memory = {"before": await look_at_memory(url, device)}
    health_s: list[float] = []
    health_failures: list[str] = []
    async with watching(url, headers={}) as watch:
        watching_health = asyncio.create_task(watch_health(url, health_s, health_failures))
        watching_memory = asyncio.create_task(watch_memory(url, device, load_s, memory))
        began_s = time.monotonic()
        answers = await closed_loop(
            url,
            planned_requests(plan, contents="load"),
            num_streams=plan.num_streams,
            load_s=load_s,
            timeout_s=plan.request_timeout_s,
        )
        watching_health.cancel()
        if time.monotonic() - began_s < load_s:  # no stream is left: the server is gone
            watching_memory.cancel()
        for task in (watching_health, watching_memory):
            with suppress(asyncio.CancelledError):
                await task
    await when_idle(url)
    await asyncio.sleep(1.0)  # whatever comes back to life, or is given back late, has done so
    return LoadResult(
        num_streams=plan.num_streams,
        load_s=load_s,
        answers=answers,
        health_s=health_s,
        health_failures=health_failures,
        memory=memory | {"after": await look_at_memory(url, device)},
        idle_before=idle_before,
        idle_after=await look_at_metrics(url),
        server_facts=watch.facts,
        most_host_growth=plan.most_host_growth,
    )


def _settle_on(device: torch.device) -> None:
    """Make this process's context on a GPU and keep nothing else there: both would look like the server's doing."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    free_unreferenced()


@contextmanager
def standard_error_to(log: Path) -> Iterator[None]:
    """Have processes that are started in the block write their standard error to `log`; this one's goes there too."""
    sys.stderr.flush()
    kept = os.dup(2)
    try:
        with log.open("ab") as file:
            os.dup2(file.fileno(), 2)
        yield
    finally:
        sys.stderr.flush()
        os.dup2(kept, 2)
        os.close(kept)


@contextmanager
def killing_children_at(deadline_s: float) -> Iterator[None]:
    """Kill the processes that the block has started if it lasts beyond `deadline_s`: one that hangs would for ever."""
    this = psutil.Process()
    others = set(this.children(recursive=True))

    def kill() -> None:
        for process in set(this.children(recursive=True)) - others:
            with suppress(psutil.NoSuchProcess):
                process.kill()

    timer = threading.Timer(max(0.0, deadline_s - time.monotonic()), kill)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


@contextmanager
def _undisturbed_by_garbage() -> Iterator[None]:
    """The client's own pauses are no gaps of the server's: what is there is not looked at again and again."""
    gc.collect()
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()
