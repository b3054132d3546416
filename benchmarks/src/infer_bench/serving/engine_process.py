"""What a process of its own does for the engine: the same server twice, its core in a process and in a thread.

Both serve the bundled demo model, and are asked in turns; `/health` is asked meanwhile. A step of so small a model
takes a few milliseconds: what HTTP and the core cost each other weighs as much as it ever does.

    uv run infer-bench engine-process
"""

import asyncio
import statistics
import time
from collections.abc import Sequence
from contextlib import ExitStack

from infer_bench.client.http import poll_health
from infer_bench.client.token_counter import read_streams
from infer_bench.results import argument_parser, save, table
from infer_bench.server.launch import serving

PLACES = {"process": "--engine-process", "thread": "--no-engine-process"}
STREAMS = (1, 8, 32)


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure, print a table and save the result."""
    parser = argument_parser(__doc__, quick="one short round of each")
    parser.add_argument("--tokens", type=int, default=200, help="tokens of each stream")
    parser.add_argument("--rounds", type=int, default=5, help="of each place, in turns")
    args = parser.parse_args(arguments)
    num_tokens, rounds = (40, 1) if args.quick else (args.tokens, args.rounds)
    with ExitStack() as servers:
        urls = {place: servers.enter_context(serving([flag])).url for place, flag in PLACES.items()}
        rows = [asyncio.run(measure(urls, num_streams, num_tokens, rounds)) for num_streams in STREAMS]
    cells = []
    for row in rows:
        process, thread = (row[f"tokens_per_s {place}"] for place in PLACES)
        both = [f"{row[f'{name} {place}']:.1f}" for name in ("itl_p99_ms", "health_max_ms") for place in PLACES]
        cells.append([f"{row['streams']:.0f}", f"{process:.0f}", f"{thread:.0f}", f"{process / thread:.2f}", *both])
    head = ["streams", "process tokens/s", "thread tokens/s", "ratio", "ITL p99 ms", "", "/health max ms", ""]
    print(f"\n{table(head, cells)}")
    if not args.quick:
        save("engine-process", {"rows": rows}, args.out)


async def measure(urls: dict[str, str], num_streams: int, num_tokens: int, rounds: int) -> dict[str, float]:
    """Return medians over rounds of each place in turns."""
    body = {"prompt": "ROMEO:\n", "max_tokens": num_tokens, "temperature": 0, "ignore_eos": True, "stream": True}
    rates: dict[str, list[float]] = {place: [] for place in urls}
    gaps_s: dict[str, list[float]] = {place: [] for place in urls}
    health_s: dict[str, list[float]] = {place: [] for place in urls}
    for number in range(rounds + 1):  # the first one warms up
        for place, url in urls.items():
            polling = asyncio.create_task(poll_health(url, health_s[place]))
            began_s = time.perf_counter()
            streams = await read_streams(url, body, num_streams)
            took_s = time.perf_counter() - began_s
            polling.cancel()
            await asyncio.wait({polling})
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
