"""How many tokens a second the server streams over HTTP, where their time goes, and what long prompts delay.

A null engine makes tokens as fast as they are taken; the server has one process and the client another. The floor is
8,000 streamed tokens per second, the aim 20,000; `/health` must answer within 50 ms meanwhile, and other streams must
not wait 50 ms longer while a 5 MB prompt is tokenized. `/health` is asked from half a second after the start on:
accepting so many requests at once is a burst of its own.

    uv run infer-bench streaming
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
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

from infer_bench.client.http import poll_health
from infer_bench.client.token_counter import TOKEN_MARK, count_tokens, read_streams
from infer_bench.results import ROOT, argument_parser, save, table
from infer_bench.serving.null_engine import null_engine
from infer_engine.frontend.async_engine import AsyncEngine
from infer_engine.protocol import GenerateRequest, SamplingParams
from infer_server import ServerSettings, create_app
from infer_server.testing import running_server

OUTPUTS_STAGE = "the engine's outputs: detokenized, queued, read"
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


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure, print a table and save the result."""
    parser = argument_parser(__doc__, quick="one short run of each")
    parser.add_argument("--tokens", type=int, default=80_000, help="tokens of one run, over all streams")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--serve", type=float, metavar="STEP_S", help=argparse.SUPPRESS)
    args = parser.parse_args(arguments)
    if args.serve is not None:
        asyncio.run(serve(args.serve))
        return
    num_tokens, repeats = (40_000, 1) if args.quick else (args.tokens, args.repeats)
    stages = asyncio.run(measure_stages(num_tokens, repeats))
    with null_server(step_s=0.0) as url:
        throughput = asyncio.run(measure_throughput(url, num_tokens, repeats))
    with null_server(step_s=PACED_STEP_S) as url:
        delays = asyncio.run(measure_long_prompts(url))
    print_report(stages, throughput, delays)
    if not args.quick:
        save("streaming", {"stages": stages, "throughput": throughput, "delays": delays}, args.out)


async def serve(step_s: float) -> None:
    """Serve a null engine until standard input ends."""
    engine = null_engine(step_s=step_s)
    gc.freeze()  # as the server does when it starts
    async with running_server(engine, ServerSettings(access_log=False)) as url:
        print(url, flush=True)
        await asyncio.to_thread(sys.stdin.read)
    await engine.close()


@contextlib.contextmanager
def null_server(*, step_s: float) -> Iterator[str]:
    """Run `serve` in a process of its own; yields its URL."""
    command = [sys.executable, "-m", "infer_bench", "streaming", "--serve", str(step_s)]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True) as process:  # noqa: S603 - our own program
        assert process.stdin is not None
        assert process.stdout is not None
        yield process.stdout.readline().strip()
        process.stdin.close()


def body(max_tokens: int) -> dict[str, Any]:
    """Return a streamed completion request."""
    return {"prompt": "Now", "max_tokens": max_tokens, "stream": True, "ignore_eos": True}


async def measure_throughput(url: str, num_tokens: int, repeats: int) -> list[dict[str, float]]:
    """Return tokens per second over HTTP by number of streams, and what `/health` took meanwhile."""
    rows = []
    for num_streams in STREAMS:
        await read_streams(url, body(8), num_streams)
        rates: list[float] = []
        health_s: list[float] = []
        for _ in range(repeats):
            polling = asyncio.create_task(poll_health(url, health_s, after_s=0.5))
            began_s = time.perf_counter()
            streams = await read_streams(url, body(max(1, num_tokens // num_streams)), num_streams)
            rates.append(sum(stream.num_tokens for stream in streams) / (time.perf_counter() - began_s))
            polling.cancel()
            await asyncio.wait({polling})
        rows.append(
            {
                "streams": num_streams,
                "tokens_per_s": statistics.median(rates),
                "health_max_ms": 1e3 * max(health_s),
                "health_median_ms": 1e3 * statistics.median(health_s),
            }
        )
    return rows


async def measure_stages(num_tokens: int, repeats: int) -> dict[str, float]:
    """Return microseconds per token, of 64 streams in this process: each stage includes those before it."""
    found: dict[str, list[float]] = {OUTPUTS_STAGE: [], EVENTS_STAGE: []}
    for _ in range(repeats):
        engine = null_engine()
        app = create_app(engine, settings=ServerSettings(access_log=False))
        for stage, read in ((OUTPUTS_STAGE, partial(read_outputs, engine)), (EVENTS_STAGE, partial(read_events, app))):
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
    """Let the application write one stream, without a socket; return how many tokens it had."""
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
            status = (await count_tokens(url, {"prompt": prompt, "max_tokens": 1, "stream": True})).status
        took_s = time.perf_counter() - began_s
        gap_s = max(max(stream.gaps_s) for stream in await streams)
        rows.append({"bytes": num_bytes, "status": status, "took_s": took_s, "longest_gap_ms": 1e3 * gap_s})
    return rows


def print_report(stages: dict[str, float], throughput: list[dict[str, float]], delays: list[dict[str, float]]) -> None:
    """Print what was measured, as Markdown."""
    whole_us = next(1e6 / row["tokens_per_s"] for row in throughput if row["streams"] == 64)
    parts = stages | {"and HTTP: over a socket, counted by a client in another process": whole_us}
    head = ["stage (64 streams, each with those before it)", "microseconds per token"]
    print("\n" + table(head, [[name, f"{us:.1f}"] for name, us in parts.items()]))

    head = ["streams", f"tokens/s (floor {FLOOR}, aim {AIM})", "/health median ms", "/health max ms (limit 50)"]
    keys = {"streams": "d", "tokens_per_s": ".0f", "health_median_ms": ".1f", "health_max_ms": ".1f"}
    print("\n" + table(head, [[format(row[key], form) for key, form in keys.items()] for row in throughput]))

    head = ["beside 16 streams of a token every 10 ms", "status", "answered in s", "longest silence of a stream, ms"]
    what = {row["bytes"]: f"a prompt of {row['bytes'] / 1e6:.1f} MB" if row["bytes"] else "nothing" for row in delays}
    rows = [
        [what[row["bytes"]], row["status"], f"{row['took_s']:.1f}", f"{row['longest_gap_ms']:.1f}"] for row in delays
    ]
    print("\n" + table(head, rows))
