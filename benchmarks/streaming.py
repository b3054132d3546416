"""How many tokens a second the front can stream over HTTP, where their time goes, and what long prompts delay.

A null engine makes tokens as fast as they are taken; the server has one process and the counting client another. The
floor is 8,000 streamed tokens per second, the aim 20,000; `/health` must answer within 50 ms meanwhile, and other
streams must not wait 50 ms longer while a 5 MB prompt is tokenized. `/health` is asked from half a second after the
start on: accepting so many requests at once is a burst of its own.

    uv run python benchmarks/streaming.py
"""

import argparse
import asyncio
import contextlib
import gc
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

from counting_client import TOKEN_MARK, post, probe, read_streams
from infer_engine.frontend.async_engine import AsyncEngine
from infer_engine.protocol import GenerateRequest, SamplingParams
from infer_server import ServerSettings, create_app
from infer_server.testing import running_server
from null_engine import null_engine
from report import ROOT, save

READ_STAGE = "the engine's outputs: detokenized, queued, read"
EVENTS_STAGE = "and the application: JSON, events"
SCOPE = {
    "type": "http",
    "asgi": {"version": "3.0"},
    "http_version": "1.1",
    "method": "POST",
    "scheme": "http",
    "path": "/v1/completions",
    "raw_path": b"/v1/completions",
    "query_string": b"",
    "root_path": "",
    "client": ("127.0.0.1", 1),
    "server": ("127.0.0.1", 80),
    "extensions": {},
}
STREAMS = (1, 8, 64, 256)
FLOOR, AIM = 8_000, 20_000
LONG_PROMPTS = (1_000_000, 5_000_000)
"""Bytes; the first fits the context of a million tokens, the second is refused once it is tokenized."""
PACED_STEP_S = 0.01


def main() -> None:
    """Measure, print a table and save the result."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokens", type=int, default=80_000, help="tokens of one run, over all streams")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--quick", action="store_true", help="one short run of each; result not saved")
    parser.add_argument("--out", type=Path, default=ROOT / "benchmarks" / "results")
    parser.add_argument("--serve", type=float, metavar="STEP_S", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.serve is not None:
        asyncio.run(serve(args.serve))
        return
    num_tokens, repeats = (40_000, 1) if args.quick else (args.tokens, args.repeats)
    stages = asyncio.run(measure_stages(num_tokens, repeats))
    with server(step_s=0.0) as url:
        throughput = asyncio.run(measure_throughput(url, num_tokens, repeats))
    with server(step_s=PACED_STEP_S) as url:
        delays = asyncio.run(measure_long_prompts(url))
    print_report(stages, throughput, delays)
    if not args.quick:
        print("saved", save("streaming", {"stages": stages, "throughput": throughput, "delays": delays}, args.out))


async def serve(step_s: float) -> None:
    """Serve a null engine until standard input ends."""
    engine = null_engine(step_s=step_s)
    gc.freeze()  # as the server does when it starts
    async with running_server(engine, ServerSettings(access_log=False)) as url:
        print(url, flush=True)
        await asyncio.to_thread(sys.stdin.read)
    await engine.close()


@contextlib.contextmanager
def server(*, step_s: float) -> Iterator[str]:
    """Run `serve` in a process of its own; yields its URL."""
    process = subprocess.Popen(  # noqa: S603 - this very program
        [sys.executable, __file__, "--serve", str(step_s)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    with process:
        yield process.stdout.readline().strip()  # type: ignore[union-attr]  # a pipe was asked for
        process.stdin.close()  # type: ignore[union-attr]  # the same


def body(max_tokens: int) -> dict[str, Any]:
    """Return a streamed completion request."""
    return {"prompt": "Now", "max_tokens": max_tokens, "stream": True, "ignore_eos": True}


async def measure_throughput(url: str, num_tokens: int, repeats: int) -> list[dict[str, float]]:
    """Return tokens per second over HTTP by number of streams, and what `/health` took meanwhile."""
    rows = []
    for num_streams in STREAMS:
        each = max(1, num_tokens // num_streams)
        await read_streams(url, body(8), num_streams)
        rates: list[float] = []
        probes_s: list[float] = []
        for _ in range(repeats):
            probing = asyncio.create_task(probe(url, probes_s, after_s=0.5))
            began_s = time.perf_counter()
            streams = await read_streams(url, body(each), num_streams)
            rates.append(sum(stream.num_tokens for stream in streams) / (time.perf_counter() - began_s))
            probing.cancel()
            await asyncio.wait({probing})
        rows.append(
            {
                "streams": num_streams,
                "tokens_per_s": statistics.median(rates),
                "health_max_ms": 1e3 * max(probes_s),
                "health_median_ms": 1e3 * statistics.median(probes_s),
            }
        )
    return rows


async def measure_stages(num_tokens: int, repeats: int) -> dict[str, float]:
    """Return microseconds per token, of 64 streams in this process: each stage includes those before it."""
    found: dict[str, list[float]] = {READ_STAGE: [], EVENTS_STAGE: []}
    for _ in range(repeats):
        engine = null_engine()
        app = create_app(engine, settings=ServerSettings(access_log=False))
        for stage, read in ((READ_STAGE, partial(read_outputs, engine)), (EVENTS_STAGE, partial(read_events, app))):
            await asyncio.gather(*(read(8) for _ in range(64)))
            began_s = time.perf_counter()
            counted = sum(await asyncio.gather(*(read(num_tokens // 64) for _ in range(64))))
            found[stage].append(1e6 * (time.perf_counter() - began_s) / counted)
        await engine.close()
    return {stage: statistics.median(times_us) for stage, times_us in found.items()}


async def read_outputs(engine: AsyncEngine, num_tokens: int) -> int:
    """Read one stream of the engine; return how many tokens it had."""
    params = SamplingParams(max_tokens=num_tokens, ignore_eos=True)
    [stream] = await engine.submit([GenerateRequest(prompt="Now", params=params)])
    return sum([len(output.token_ids) async for output in stream])


async def read_events(app: Any, num_tokens: int) -> int:
    """Have the application write one stream to nobody; return how many tokens it had."""
    data = json.dumps(body(num_tokens)).encode()
    messages = [{"type": "http.request", "body": data, "more_body": False}]
    never = asyncio.Event()
    num_seen = 0

    async def receive() -> Any:
        if not messages:
            await never.wait()
        return messages.pop()

    async def send(message: Any) -> None:
        nonlocal num_seen
        num_seen += message.get("body", b"").count(TOKEN_MARK)

    await app({**SCOPE, "headers": [(b"content-length", str(len(data)).encode())], "state": {}}, receive, send)
    return num_seen


async def measure_long_prompts(url: str) -> list[dict[str, float]]:
    """Return the longest silence of 16 paced streams: alone, and while prompts are tokenized that fit, and do not."""
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    await read_streams(url, body(8), 16)
    rows = []
    for num_bytes in (0, *LONG_PROMPTS):
        streams = asyncio.create_task(read_streams(url, body(500), 16))
        await asyncio.sleep(0.5)
        began_s = time.perf_counter()
        status = 0
        if num_bytes:
            prompt = (text * (num_bytes // len(text) + 1))[:num_bytes]
            status = (await post(url, "/v1/completions", {"prompt": prompt, "max_tokens": 1, "stream": True})).status
        took_s = time.perf_counter() - began_s
        gap_s = max(max(stream.gaps_s) for stream in await streams)
        rows.append({"bytes": num_bytes, "status": status, "took_s": took_s, "longest_gap_ms": 1e3 * gap_s})
    return rows


def print_report(stages: dict[str, float], throughput: list[dict[str, float]], delays: list[dict[str, float]]) -> None:
    """Print what was measured, as Markdown."""
    print("\n| stage (64 streams, each with those before it) | microseconds per token |")
    print("|---|---|")
    for name, us in stages.items():
        print(f"| {name} | {us:.1f} |")
    whole = next(row for row in throughput if row["streams"] == 64)
    print(f"| and HTTP: over a socket, counted by a client in another process | {1e6 / whole['tokens_per_s']:.1f} |")
    print(f"\n| streams | tokens/s (floor {FLOOR}, aim {AIM}) | /health median ms | /health max ms (limit 50) |")
    print("|---|---|---|---|")
    for row in throughput:
        print(
            f"| {row['streams']} | {row['tokens_per_s']:.0f} | {row['health_median_ms']:.1f} "
            f"| {row['health_max_ms']:.1f} |"
        )
    print("\n| beside 16 streams of a token every 10 ms | status | answered in s | longest silence of a stream, ms |")
    print("|---|---|---|---|")
    for row in delays:
        what = f"a prompt of {row['bytes'] / 1e6:.1f} MB" if row["bytes"] else "nothing"
        print(f"| {what} | {row['status']} | {row['took_s']:.1f} | {row['longest_gap_ms']:.1f} |")


if __name__ == "__main__":
    main()
