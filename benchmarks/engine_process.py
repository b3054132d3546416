"""What a process of its own does for the engine: the same server twice, its core in a process and in a thread.

Both serve the bundled demo model, and are asked in turns; `/health` is asked meanwhile. A step of so small a model
takes a few milliseconds: what front and core cost each other weighs as much as it ever does.

    uv run python benchmarks/engine_process.py
"""

import argparse
import asyncio
import re
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from counting_client import probe, read_streams
from report import ROOT, save

PLACES = {"process": "--engine-process", "thread": "--no-engine-process"}
STREAMS = (1, 8, 32)


def main() -> None:
    """Measure, print a table and save the result."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokens", type=int, default=200, help="tokens of each stream")
    parser.add_argument("--rounds", type=int, default=5, help="of each place, in turns")
    parser.add_argument("--quick", action="store_true", help="one short round of each; result not saved")
    parser.add_argument("--out", type=Path, default=ROOT / "benchmarks" / "results")
    args = parser.parse_args()
    num_tokens, rounds = (40, 1) if args.quick else (args.tokens, args.rounds)
    with ExitStack() as servers:
        urls = {place: servers.enter_context(server(flag)) for place, flag in PLACES.items()}
        rows = [asyncio.run(measure(urls, num_streams, num_tokens, rounds)) for num_streams in STREAMS]
    print("\n| streams | process tokens/s | thread tokens/s | ratio | ITL p99 ms | | /health max ms | |")
    print("|---|---|---|---|---|---|---|---|")
    for row in rows:
        both = " | ".join(
            f"{row[f'{name} {place}']:.1f}" for name in ("itl_p99_ms", "health_max_ms") for place in PLACES
        )
        rates = [row[f"tokens_per_s {place}"] for place in PLACES]
        print(f"| {row['streams']:.0f} | {rates[0]:.0f} | {rates[1]:.0f} | {rates[0] / rates[1]:.2f} | {both} |")
    if not args.quick:
        print("saved", save("engine-process", {"rows": rows}, args.out))


@contextmanager
def server(flag: str) -> Iterator[str]:
    """Serve the demo model with `flag`; yields the URL."""
    command = [sys.executable, "-m", "infer_server", "--port", "0", "--no-access-log", flag]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)  # noqa: S603 - our own program
    with process:
        banner = ""
        while not (found := re.search(r"listens on (\S+)", banner)):
            banner += process.stdout.readline()  # type: ignore[union-attr]  # a pipe was asked for
        try:
            yield found[1]
        finally:
            process.terminate()


async def measure(urls: dict[str, str], num_streams: int, num_tokens: int, rounds: int) -> dict[str, float]:
    """Return medians over rounds of each place in turns."""
    body = {"prompt": "ROMEO:\n", "max_tokens": num_tokens, "temperature": 0, "ignore_eos": True, "stream": True}
    rates: dict[str, list[float]] = {place: [] for place in urls}
    gaps_s: dict[str, list[float]] = {place: [] for place in urls}
    health_s: dict[str, list[float]] = {place: [] for place in urls}
    for number in range(rounds + 1):  # the first one warms up
        for place, url in urls.items():
            probing = asyncio.create_task(probe(url, health_s[place]))
            began_s = time.perf_counter()
            streams = await read_streams(url, body, num_streams)
            took_s = time.perf_counter() - began_s
            probing.cancel()
            await asyncio.wait({probing})
            if number:
                rates[place].append(num_streams * num_tokens / took_s)
                gaps_s[place] += [gap for stream in streams for gap in stream.gaps_s]
            else:
                health_s[place].clear()
    row: dict[str, float] = {"streams": num_streams}
    for place in urls:
        row[f"tokens_per_s {place}"] = statistics.median(rates[place])
        row[f"itl_p99_ms {place}"] = 1e3 * statistics.quantiles(gaps_s[place], n=100)[98]
        row[f"health_max_ms {place}"] = 1e3 * max(health_s[place])
    return row


if __name__ == "__main__":
    main()
