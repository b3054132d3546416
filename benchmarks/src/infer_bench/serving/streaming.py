"""The rate at which the server streams tokens over HTTP, and what long prompts delay.

A null engine makes tokens as fast as they are taken; the server has one process and the client another. The floor is
8,000 streamed tokens per second, the aim 20,000; `/health` must answer within 50 ms meanwhile, and other streams must
not wait 50 ms longer while a 5 MB prompt is tokenized. Where a limit is missed, the exit code is 1. `/health` is asked
from half a second after the start on: accepting so many requests at once is a burst of its own.

    uv run infer-bench streaming
"""

import argparse
import asyncio
import contextlib
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import psutil

from infer_bench.client.http import http_client
from infer_bench.client.load import run_workload, whole
from infer_bench.client.summary import summarize
from infer_bench.client.workloads import PlannedRequest, Workload
from infer_bench.limits import Limit, judge
from infer_bench.results import ROOT, Columns, argument_parser, columns_table, save
from infer_bench.serving.null_engine import null_engine
from infer_proofs.server import running_server
from infer_server import ServerSettings
from infer_server.connections.event_loop import new_event_loop
from infer_server.connections.garbage import rare_collections

STREAMS = (1, 8, 64, 256)
FLOOR, AIM = 8_000, 20_000
LIMIT_MS = 50.0
"""Limit of an answer of `/health`, and of the silence that long prompts add to other streams."""
LONG_PROMPTS = (1_000_000, 5_000_000)
"""Bytes; the first fits the context of a million tokens, the second is refused once it is tokenized."""
PACED_STEP_S = 0.01
BURST_S = 0.5
THROUGHPUT: Columns = {
    "streams": "{streams:g}",
    f"tokens/s (floor {FLOOR}, aim {AIM})": "{tokens_per_s:.0f}",
    "/health median ms": "{health_median_ms:.3g}",
    f"/health max ms (limit {LIMIT_MS:g})": "{health_max_ms:.3g}",
}
DELAYS: Columns = {
    "beside 16 streams of a token every 10 ms": lambda row: (
        f"a prompt of {row['bytes'] / 1e6:.1f} MB" if row["bytes"] else "nothing"
    ),
    "status": lambda row: f"{row['status']:g}" if row["bytes"] else "",
    "answered in, s": lambda row: f"{row['took_s']:.1f}" if row["bytes"] else "",
    "longest silence of a stream, ms": "{longest_gap_ms:.1f}",
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, print a table and save the result; return 1 if a limit is missed."""
    parser = argument_parser(__doc__, quick="one short run of each", rounds=3)
    parser.add_argument("--tokens", type=int, default=80_000, help="tokens of one run, over all streams")
    parser.add_argument("--serve", type=float, metavar="STEP_S", help=argparse.SUPPRESS)
    args = parser.parse_args(arguments)
    if args.serve is not None:
        with asyncio.Runner(loop_factory=new_event_loop) as runner:
            runner.run(serve(args.serve))
        return 0
    num_tokens, repeats = (40_000, 1) if args.quick else (args.tokens, args.rounds)
    with null_server(step_s=0.0) as server:
        throughput = asyncio.run(measure_throughput(server.url, num_tokens, repeats))
    with null_server(step_s=PACED_STEP_S) as server:
        delays = asyncio.run(measure_long_prompts(server.url))
    print(f"\n{columns_table(THROUGHPUT, throughput)}\n\n{columns_table(DELAYS, delays)}")
    save("streaming", {"throughput": throughput, "delays": delays}, args)
    return judge(limits(throughput, delays))


def limits(throughput: Sequence[dict[str, float]], delays: Sequence[dict[str, float]]) -> list[Limit]:
    """Return the limits of all numbers; of `delays`, the first one is without a prompt."""
    alone, *beside = delays
    health, silence = (
        "longest answer of /health beside {streams:g} streams",
        "longest silence of a stream beside a prompt",
    )
    return [
        *(
            Limit(what=f"{row['streams']:g} streams", value=row["tokens_per_s"], unit="tokens/s", least=FLOOR)
            for row in throughput
        ),
        *(
            Limit(what=health.format_map(row), value=row["health_max_ms"], unit="ms", most=LIMIT_MS)
            for row in throughput
        ),
        *(
            Limit(
                what=f"{silence} of {row['bytes'] / 1e6:.1f} MB, above that beside none",
                value=row["longest_gap_ms"] - alone["longest_gap_ms"],
                unit="ms",
                most=LIMIT_MS,
            )
            for row in beside
        ),
    ]


async def serve(step_s: float) -> None:
    """Serve a null engine until standard input ends."""
    engine = null_engine(step_s=step_s)
    with rare_collections():
        async with running_server(engine, ServerSettings(access_log=False)) as url:
            print(url, flush=True)
            await asyncio.to_thread(sys.stdin.read)
        await engine.close()


class NullServer(NamedTuple):
    """A running server: where it listens, and its process."""

    url: str
    process: psutil.Process

    def cpu_s(self) -> float:
        """Return the processor time that it has taken."""
        times = self.process.cpu_times()
        return times.user + times.system


@contextlib.contextmanager
def null_server(*, step_s: float) -> Iterator[NullServer]:
    """Run `serve` in a process of its own."""
    command = [sys.executable, "-m", "infer_bench", "streaming", "--serve", str(step_s)]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True) as process:  # noqa: S603 - our own program
        assert process.stdin is not None
        assert process.stdout is not None
        yield NullServer(url=process.stdout.readline().strip(), process=psutil.Process(process.pid))
        process.stdin.close()


async def run_streams(url: str, num_streams: int, num_tokens: int) -> dict[str, Any]:
    """Read so many streams of `num_tokens` tokens each to their ends, all at once; return their summary."""
    requests = tuple(PlannedRequest(arrival_s=0.0, prompt=[5], max_tokens=num_tokens) for _ in range(num_streams))
    workload = Workload(name="streams", requests=requests, is_closed_loop=False)
    return summarize(whole(await run_workload(url, workload, progress=False), workload))


async def poll_health(url: str, latencies_s: list[float]) -> None:
    """Ask `/health` twenty times a second, until cancelled."""
    await asyncio.sleep(BURST_S)
    async with http_client(url) as client:
        while True:
            began_s = time.perf_counter()
            (await client.get("/health")).raise_for_status()
            latencies_s.append(time.perf_counter() - began_s)
            await asyncio.sleep(0.05)


async def measure_throughput(url: str, num_tokens: int, repeats: int) -> list[dict[str, float]]:
    """Return tokens per second over HTTP by number of streams, and what `/health` took meanwhile."""
    rows = []
    for num_streams in STREAMS:
        await run_streams(url, num_streams, 8)
        rates: list[float] = []
        health_s: list[float] = []
        for _ in range(repeats):
            polling = asyncio.create_task(poll_health(url, health_s))
            summary = await run_streams(url, num_streams, max(1, num_tokens // num_streams))
            rates.append(summary["output_tokens_per_s"])
            polling.cancel()
            await asyncio.wait({polling})
        rows.append(
            {
                "streams": num_streams,
                "tokens_per_s": statistics.median(rates),
                "health_median_ms": 1e3 * statistics.median(health_s),
                "health_max_ms": 1e3 * max(health_s),
            }
        )
    return rows


async def measure_long_prompts(url: str) -> list[dict[str, float]]:
    """Return the longest gap of 16 paced streams: alone, and while prompts are tokenized that fit, and do not."""
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    await run_streams(url, 16, 8)
    rows = []
    for num_bytes in (0, *LONG_PROMPTS):
        streams = asyncio.create_task(run_streams(url, 16, 500))
        await asyncio.sleep(BURST_S)
        began_s = time.perf_counter()
        status = 0
        if num_bytes:
            prompt = (text * (num_bytes // len(text) + 1))[:num_bytes]
            async with http_client(url) as client:
                reply = await client.post("/v1/completions", json={"prompt": prompt, "max_tokens": 1})
            status = reply.status_code
        took_s = time.perf_counter() - began_s
        gap_s = (await streams)["itl_s"]["max"]
        rows.append({"bytes": num_bytes, "status": status, "took_s": took_s, "longest_gap_ms": 1e3 * gap_s})
    return rows
