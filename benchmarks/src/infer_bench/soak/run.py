"""A soak: mixed, hostile and disconnecting traffic over two replicas, whose cores are killed.

    uv run infer-bench soak                                   # an hour
    uv run infer-bench soak --minutes 15 --warmup-minutes 3

Serves the demo model with two replicas, and does at once what clients of all kinds do: streams whose texts are
compared with those of an undisturbed run, plain requests, clients that leave, odd bodies, slow and cut sockets,
scrapes. Every few minutes a core is killed. Meanwhile the memory of every process is sampled. In the end it judges:
memory is flat and P99 does not drift after the warm-up, requests and blocks balance, the server ends in good order.
The exit code is 1 if one of these does not hold. The KV cache is small, so that all its blocks are used in the warm-up:
memory that fills with use is not growth. P99 depends on what else the machine does: the report has the processors that
other programs used.
"""

import argparse
import asyncio
import subprocess
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import psutil

from infer_bench.limits import FINDINGS, Finding
from infer_bench.results import argument_parser, columns_table, current_commit, save, table
from infer_bench.server.launch import OwnServer, serving
from infer_bench.soak.counters import (
    ServerCounts,
    counts_between,
    judge_clients,
    judge_server,
    read_samples,
    sum_of,
    wait_until_idle,
)
from infer_bench.soak.hostile import read_fields
from infer_bench.soak.latency import Kill, judge_kills, judge_latency, report_others, windows_of
from infer_bench.soak.memory import judge_memory
from infer_bench.soak.processes import ProcessWatch, kill_often
from infer_bench.soak.tally import OUTCOMES, Clock, Tally
from infer_bench.soak.traffic import Traffic, undisturbed_texts

FLAGS = ("--data-parallel-size", "2", "--num-kv-blocks", "128", "--receive-timeout", "5")
SAMPLE_S = 5.0
KILL_MINUTES = 5.0
"""Between two kills; less in a run of less than three times as long."""
WARM_UP_SHARE = 1 / 6
ENDS_WITHIN_S = 60.0
QUICK_MINUTES = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Soaked:
    """All that was seen of a server.

    Attributes:
        watch: its processes.
        traffic: its clients.
        kills: its cores that were killed.
        counts: what it counted itself.
        num_blocks: its KV blocks before the traffic.
    """

    watch: ProcessWatch
    traffic: Traffic
    kills: list[Kill]
    counts: ServerCounts
    num_blocks: float


def main(arguments: Sequence[str] | None = None) -> int:
    """Soak a server, print and save what was found; return 1 if something does not hold."""
    args = read_arguments(arguments)
    commit = current_commit()  # before somebody changes the files
    with tempfile.TemporaryDirectory() as folder, (log := Path(folder) / "server.log").open("wb") as errors:
        with serving(FLAGS, stderr=errors) as server:
            soaked = asyncio.run(soak(server, minutes=args.minutes, kill_minutes=args.kill_minutes))
            ending = end(server, soaked.watch)
        text = log.read_text(errors="replace")
    findings = [*judge(soaked, warm_up_s=60 * args.warmup_minutes), *ending, judge_log(text)]
    tally = soaked.traffic.tally
    print(f"\n{table(['clients', 'sent', *OUTCOMES], tally.rows())}")
    print(f"\n{columns_table(FINDINGS, [finding._asdict() for finding in findings])}")
    print("".join(f"\n{failure}" for failure in tally.failures))
    is_sound = all(finding.holds is not False for finding in findings)
    if not is_sound:
        print(f"\nThe server's log:\n{text[-20_000:]}")
    save("soak", details(soaked, findings, args), args, commit=commit)  # of which `publish` draws a picture
    return 0 if is_sound else 1


def read_arguments(arguments: Sequence[str] | None) -> argparse.Namespace:
    """Return the arguments; the warm-up is a sixth of the time, ten minutes of an hour, if they do not say."""
    parser = argument_parser(__doc__, quick="a minute with two kills, too short to judge memory and P99")
    parser.add_argument("--minutes", type=float, default=60.0, help="of traffic")
    parser.add_argument("--warmup-minutes", type=float, help="not judged; left out: a sixth of `--minutes`")
    parser.add_argument("--kill-minutes", type=float, help="between kills; left out: 5, or a third of less than 15")
    args = parser.parse_args(arguments)
    if args.quick:
        args.minutes, args.kill_minutes = QUICK_MINUTES, QUICK_MINUTES / 2
    if args.kill_minutes is None:
        args.kill_minutes = min(KILL_MINUTES, args.minutes / 3)
    if args.warmup_minutes is None:
        args.warmup_minutes = args.minutes * WARM_UP_SHARE
    if not 0 <= args.warmup_minutes < args.minutes:
        parser.error(f"`--warmup-minutes` is {args.warmup_minutes:g}; it must be less than {args.minutes:g}")
    return args


async def soak(server: OwnServer, *, minutes: float, kill_minutes: float) -> Soaked:
    """Send all traffic to a server and kill its cores meanwhile; return when nothing is left to do."""
    fields = await read_fields(server.url)
    texts = await undisturbed_texts(server.url)
    before = await read_samples(server.url)
    clock = Clock()
    watch = ProcessWatch(psutil.Process(server.process.pid), clock)
    traffic = Traffic(server.url, clock=clock, texts=texts, fields=fields)
    kills: list[Kill] = []
    until_s = 60 * minutes
    sampling = asyncio.create_task(watch.sample_often(SAMPLE_S))
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(traffic.run(until_s))
        tasks.create_task(kill_often(watch, server.url, kills, period_s=60 * kill_minutes, until_s=until_s))
    sampling.cancel()
    await asyncio.wait({sampling})
    counts = counts_between(before, await wait_until_idle(server.url))
    num_blocks = sum_of(before, "infer:kv_blocks")
    return Soaked(watch=watch, traffic=traffic, kills=kills, counts=counts, num_blocks=num_blocks)


def end(server: OwnServer, watch: ProcessWatch) -> list[Finding]:
    """Send SIGTERM, and judge how the server ends."""
    processes = [*watch.series, *watch.server.children(recursive=True)]
    server.process.terminate()
    try:
        code = server.process.wait(ENDS_WITHIN_S)
    except subprocess.TimeoutExpired:
        code = None
    _, left = psutil.wait_procs([each for each in processes if each != watch.server], timeout=10)
    return [
        Finding("exit code after SIGTERM", f"{code}", "0", code == 0),
        Finding("processes left", f"{len(left)}", "0", not left),
    ]


def judge(soaked: Soaked, *, warm_up_s: float) -> list[Finding]:
    """Judge all that was seen while the server ran."""
    traffic, kills = soaked.traffic, soaked.kills
    return [
        *judge_memory(list(soaked.watch.series.values()), warm_up_s=warm_up_s),
        *judge_latency(traffic.streams, kills, warm_up_s=warm_up_s),
        report_others(soaked.watch.others, warm_up_s=warm_up_s),
        judge_kills(kills),
        *judge_clients(traffic.tally),
        *judge_server(soaked.counts, traffic.tally, num_blocks=soaked.num_blocks, num_kills=len(kills)),
    ]


def judge_log(text: str) -> Finding:
    """Judge whether the server's log has a traceback."""
    count = text.count("Traceback")
    return Finding("tracebacks in the log", f"{count} in {len(text.splitlines())} lines", "0", count == 0)


def details(soaked: Soaked, findings: Sequence[Finding], args: argparse.Namespace) -> dict[str, Any]:
    """Return what is saved."""
    tally: Tally = soaked.traffic.tally
    return {
        "flags": FLAGS,
        "minutes": args.minutes,
        "warmup_minutes": args.warmup_minutes,
        "findings": [finding._asdict() for finding in findings],
        "clients": [dict(zip(("kind", "sent", *OUTCOMES), row, strict=True)) for row in tally.rows()],
        "failures": tally.failures,
        "server": asdict(soaked.counts),
        "kills": [kill._asdict() for kill in soaked.kills],
        "p99_by_minute": [window._asdict() for window in windows_of(soaked.traffic.streams, soaked.kills)],
        "others_cpu": [[round(value, 2) for value in each] for each in soaked.watch.others],
        "memory": [asdict(series) for series in soaked.watch.series.values()],
    }
