"""Watches the processes of a server in a soak: samples their memory, and kills cores."""

import asyncio
import contextlib

import psutil

from infer_bench.soak.counters import read_samples, sum_of
from infer_bench.soak.latency import Kill, OthersCpu
from infer_bench.soak.memory import MemorySeries
from infer_bench.soak.tally import Clock
from infer_proofs.engine.processes import core_processes

MIB = 2**20
RECOVERED_WITHIN_S = 60.0

_ROLES = {"infer_engine.assembly.core_process": "core", "infer_engine.structured.sandbox_process": "grammar screen"}


class ProcessWatch:
    """The processes of a server, as far as they were seen.

    Attributes:
        server: the server's process.
        clock: clock of the soak.
        series: memory by process, in the order in which they were seen.
        others: what all other programs have computed, by sample.
    """

    def __init__(self, server: psutil.Process, clock: Clock) -> None:
        """Have seen nothing but `server`."""
        self.server = server
        self.series: dict[psutil.Process, MemorySeries] = {}
        self.others: list[OthersCpu] = []
        self.clock = clock
        self._own_cpu_s: dict[psutil.Process, float] = {}

    def sample(self) -> None:
        """Note the memory of the server's process and of all below it, and what others have computed."""
        for process in [self.server, *self.server.children(recursive=True)]:
            with contextlib.suppress(psutil.NoSuchProcess):  # it ended just now
                self._note(process)
        client = psutil.Process()
        self._own_cpu_s[client] = cpu_s(client)
        busy = psutil.cpu_times()
        others_s = sum(busy) - busy.idle - busy.iowait - sum(self._own_cpu_s.values())
        self.others.append(OthersCpu(at_s=self.clock.now_s(), cpu_s=others_s))

    async def sample_often(self, period_s: float) -> None:
        """Sample until cancelled."""
        while True:
            self.sample()
            await asyncio.sleep(period_s)

    def _note(self, process: psutil.Process) -> None:
        if process not in self.series:
            role = "server" if process == self.server else self._role(process)
            if role is None:
                return
            count = sum(each.name.partition(",")[0] == role for each in self.series.values())
            self.series[process] = MemorySeries(name=f"{role}, {count + 1}" if role == "core" or count else role)
        memory, series = process.memory_info(), self.series[process]
        if not memory.rss:  # it was killed just now
            return
        self._own_cpu_s[process] = cpu_s(process)
        series.times_s.append(round(self.clock.now_s(), 2))
        series.own_mib.append(round((memory.rss - memory.shared) / MIB, 2))

    def _role(self, process: psutil.Process) -> str | None:
        """Return what a process does; None for one that has not begun to, or has ended."""
        if process.status() == psutil.STATUS_ZOMBIE:
            return None
        words = process.cmdline()
        if words == self.server.cmdline():  # a fork that is about to become another program
            return None
        return next((role for module, role in _ROLES.items() if module in words), process.name())


def cpu_s(process: psutil.Process) -> float:
    """Return the seconds that a process has computed."""
    times = process.cpu_times()
    return times.user + times.system


async def kill_often(watch: ProcessWatch, url: str, kills: list[Kill], *, period_s: float, until_s: float) -> None:
    """Kill a core in the middle of each period that ends before `until_s`, and note what happened in `kills`.

    The first one is the oldest core, each later one the youngest: both replicas lose a core, and one core lives from
    its start until the end, so that its memory can be judged.
    """
    while (at_s := (len(kills) + 0.5) * period_s) + period_s / 2 <= until_s:
        await asyncio.sleep(max(0.0, at_s - watch.clock.now_s()))
        watch.sample()
        num_replaced = sum_of(await read_samples(url), "infer:replaced_cores_total")
        cores = core_processes(watch.server)
        victim = cores[-1] if kills else cores[0]
        at_s = watch.clock.now_s()
        victim.kill()
        recovered_s = await _wait_for_two_cores(watch.clock, url, num_replaced + 1)
        kills.append(Kill(at_s=at_s, victim=watch.series[victim].name, recovered_s=recovered_s))


async def _wait_for_two_cores(clock: Clock, url: str, num_replaced: float) -> float | None:
    """Return when the server had replaced so many cores, and has two; None if that takes too long."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(RECOVERED_WITHIN_S):
            while True:
                samples = await read_samples(url)
                is_replaced = sum_of(samples, "infer:replaced_cores_total") >= num_replaced
                if is_replaced and sum_of(samples, "infer:replica_up") == 2:
                    return clock.now_s()
                await asyncio.sleep(0.1)
    return None
