"""How a server serves: seeded workloads against any OpenAI-compatible server, timed by a client.

    uv run infer-bench serving --workload mixed                               # ours, the demo model
    uv run infer-bench serving --shape smollm-135m --serve --max-batch-size 16
    uv run infer-bench serving --url http://127.0.0.1:8000 --workload chunked_prefill --rate 2
    uv run infer-bench serving --url http://127.0.0.1:8000 --workload mixed --sweep

Arrivals are the workload's own (open loop, `baseline` one after another), Poisson with `--rate R`, or a closed loop of
`--concurrency N`; with several values of these, or `--sweep`, each is a point of a plot of latency against throughput.
Servers that take no token ids need `--prompt-as-text`, or `--api chat`; those that refuse fields beyond OpenAI's need
`--plain`, and may then end their answers early.
"""

import argparse
import asyncio
import gc
import signal
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from typing import Any

from infer_bench.client.dialects import Dialect, add_dialect_flags, chosen_dialect
from infer_bench.client.load import REQUEST_TIMEOUT_S, RequestResult, run_workload
from infer_bench.client.summary import ITL_BOUND_S, TTFT_BOUND_S, combine, markdown_table, summarize
from infer_bench.client.workloads import WORKLOADS, Workload, make_workload, with_poisson_arrivals
from infer_bench.results import argument_parser, save
from infer_bench.server.launch import OwnServer, serving
from infer_bench.server.metrics import describe, served_model, watching
from infer_bench.serving.plots import plot_sweep, plot_timeline
from infer_bench.shapes import SHAPES

SWEEP = (1, 2, 4, 8, 16, 32)
VOCAB_SIZE = 512
"""Prompts are of these ids, which every vocabulary has: the same prompts for every model."""
LOOPS = 4
"""Requests of a closed loop for each that is open at once, at least: its begin and end are then the smaller part."""
WARM_UP_CONTENTS = 1_000_000
"""Prompts that no measured run has."""
SERVER_ROWS = {
    "KV occupancy, peak": "kv_occupancy_peak",
    "preemptions": "num_preemptions",
    "mean queue time, s": "mean_queue_time_s",
}
"""Rows of the table that the server's own metrics give."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """How requests arrive.

    Attributes:
        rate: Poisson arrivals per second; None leaves the workload's own.
        concurrency: a closed loop of so many; None leaves the workload's own.
    """

    rate: float | None = None
    concurrency: int | None = None

    @property
    def name(self) -> str:
        """How tables call it."""
        if self.concurrency is not None:
            return f"{self.concurrency} at once"
        return "its own arrivals" if self.rate is None else f"{self.rate:g} per second"

    @property
    def value(self) -> float:
        """How plots label it."""
        return self.concurrency or self.rate or 0.0

    def apply(self, workload: Workload, seed: int) -> Workload:
        """Return `workload` with these arrivals."""
        if self.rate is not None:
            return with_poisson_arrivals(workload, rate=self.rate, seed=seed)
        return workload if self.concurrency is None else replace(workload, is_closed_loop=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """A server and how it is spoken to."""

    url: str
    model: str | None
    dialect: Dialect
    api_key: str | None
    timeout_s: float

    @property
    def headers(self) -> dict[str, str]:
        """What every request carries."""
        return {"Authorization": f"Bearer {self.api_key}"} if self.api_key else {}

    async def send(
        self, workload: Workload, *, progress: bool, max_concurrency: int | None = None
    ) -> list[RequestResult]:
        """Run `workload` against it."""
        return await run_workload(
            self.url,
            workload,
            model=self.model,
            progress=progress,
            max_concurrency=max_concurrency,
            dialect=self.dialect,
            api_key=self.api_key,
            timeout_s=self.timeout_s,
        )


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure, print a table, draw, and save the result."""
    args = read_arguments(arguments)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # not without ending our server
    gc.freeze()  # the client's own pauses are no gaps of the server's
    with target_server(args) as (url, own):
        asyncio.run(measure(args, url, own))


def read_arguments(arguments: Sequence[str] | None) -> argparse.Namespace:
    """Return the command line's flags, checked."""
    parser = argument_parser(__doc__, quick="one run at a tenth of the lengths")
    parser.add_argument("--url", help="of a running server; left out: ours is started")
    parser.add_argument("--model", help="the model's name in requests; left out: the first that the server lists")
    parser.add_argument("--api-key")
    parser.add_argument("--checkpoint", help="folder or Hub id that our server loads; left out: the demo model")
    parser.add_argument("--shape", choices=sorted(SHAPES), help="our server has random weights of this shape")
    parser.add_argument("--serve", nargs=argparse.REMAINDER, default=[], help="flags of our server; must come last")
    parser.add_argument("--workload", choices=WORKLOADS, default="mixed")
    parser.add_argument("--scale", type=float, default=1.0, help="factor on the lengths of prompts and answers")
    parser.add_argument("--rate-scale", type=float, default=1.0, help="factor on the workload's own arrival rate")
    parser.add_argument(
        "--requests", type=int, help="how many; default: the workload's own number, at least four times --concurrency"
    )
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--vocab-size", type=int, default=VOCAB_SIZE, help="prompts are of ids below")
    parser.add_argument("--rate", type=float, nargs="+", help="Poisson arrivals per second")
    parser.add_argument("--concurrency", type=int, nargs="+", help="closed loop of so many requests at once")
    parser.add_argument("--sweep", action="store_true", help=f"--concurrency {' '.join(map(str, SWEEP))}")
    parser.add_argument("--repeats", type=int, help="runs of each load; default 3, 1 for each of several loads")
    parser.add_argument("--warmup", type=int, default=4, help="requests before, which do not count")
    parser.add_argument("--ttft-bound", type=float, default=TTFT_BOUND_S, metavar="S", help="of goodput, seconds")
    parser.add_argument("--itl-bound", type=float, default=ITL_BOUND_S, metavar="S", help="of goodput, seconds")
    add_dialect_flags(parser)
    parser.add_argument("--timeout", type=float, default=REQUEST_TIMEOUT_S, help="seconds until a request has failed")
    parser.add_argument("--no-progress", action="store_true")
    parser.add_argument("--name", help="of the result's files; default: serving-WORKLOAD")
    args = parser.parse_args(arguments)
    if args.url and (args.checkpoint or args.shape or args.serve):
        parser.error("`--url` names a running server: `--checkpoint`, `--shape` and `--serve` are for ours")
    if args.checkpoint and args.shape:
        parser.error("`--checkpoint` and `--shape` are two models: give one")
    if bool(args.rate) + bool(args.concurrency) + args.sweep > 1:
        parser.error("`--rate`, `--concurrency` and `--sweep` exclude each other")
    if args.quick:
        args.scale, args.repeats = args.scale * 0.1, 1
    return args


@contextmanager
def target_server(args: argparse.Namespace) -> Iterator[tuple[str, OwnServer | None]]:
    """Yield the URL to ask, and our own server if it was started for this."""
    if args.url:
        yield args.url.rstrip("/").removesuffix("/v1"), None
        return
    checkpoint = ("--model", args.checkpoint) if args.checkpoint else ()
    with serving((*checkpoint, *args.serve), shape=args.shape) as own:
        yield own.url, own


async def measure(args: argparse.Namespace, url: str, own: OwnServer | None) -> None:
    """Warm up, run every load as often as asked, report."""
    target = Target(
        url=url, model=args.model, dialect=chosen_dialect(args), api_key=args.api_key, timeout_s=args.timeout
    )
    told = await describe(url, headers=target.headers)
    listed, context = served_model(told)
    target = replace(target, model=args.model or listed)
    planned = plan(args, contents=0, num_requests=args.requests)
    if context is not None and planned.longest > context:
        raise SystemExit(
            f"{args.workload} has requests of {planned.longest} tokens but {target.model} takes {context}; "
            f"use `--scale {0.98 * args.scale * context / planned.longest:.2g}` or less."
        )
    await warm_up(args, target)
    loads = loads_of(args)
    repeats = args.repeats or (1 if len(loads) > 1 else 3)
    runs: dict[Load, list[dict[str, Any]]] = {load: [] for load in loads}
    last: list[RequestResult] = []
    for number in range(repeats):
        for position, load in enumerate(loads):
            contents = number * len(loads) + position
            count = None if load.concurrency is None else max(len(planned.requests), LOOPS * load.concurrency)
            workload = load.apply(plan(args, contents=contents, num_requests=args.requests or count), args.seed)
            last, summary = await measure_once(args, target, workload, load)
            runs[load].append(summary)

    print_report(args, target, runs)
    name = args.name or f"serving-{args.workload}"
    draw(args, target, runs, last, name=name)
    result = {
        "workload": describe_workload(args, planned),
        "target": {
            "url": url,
            "model": target.model,
            "dialect": target.dialect.name,
            "extras": target.dialect.extras,
            "told": told,
        },
        "own_server": asdict(own) if own else None,
        "runs": [{**asdict(load), "runs": found, "spread": combine(found)} for load, found in runs.items()],
    }
    if not args.quick:
        save(name, result, args.out)


def loads_of(args: argparse.Namespace) -> list[Load]:
    """Return the loads to run, in order."""
    if args.rate:
        return [Load(rate=rate) for rate in args.rate]
    counts = SWEEP if args.sweep else args.concurrency or ()
    return [Load(concurrency=count) for count in counts] or [Load()]


def plan(args: argparse.Namespace, *, contents: int, num_requests: int | None = None) -> Workload:
    """Return the workload, of `num_requests` or as many as it has; `contents` chooses the prompts."""
    return make_workload(
        args.workload,
        scale=args.scale,
        rate_scale=args.rate_scale,
        seed=args.seed,
        contents=contents,
        vocab_size=args.vocab_size,
        num_requests=num_requests,
    )


async def warm_up(args: argparse.Namespace, target: Target) -> None:
    """Send a few requests of other contents at once, and stop where the server refuses them."""
    if not args.warmup:
        return
    workload = plan(args, contents=WARM_UP_CONTENTS)
    requests = tuple(replace(request, arrival_s=0.0) for request in workload.requests[: args.warmup])
    results = await target.send(replace(workload, requests=requests, is_closed_loop=False), progress=False)
    if all(result.error for result in results):
        raise SystemExit(f"{target.url} refused the warm-up: {results[0].error}")


async def measure_once(
    args: argparse.Namespace, target: Target, workload: Workload, load: Load
) -> tuple[list[RequestResult], dict[str, Any]]:
    """Run once; return the results and their summary, with the server's own metrics where it has them."""
    async with watching(target.url, headers=target.headers) as watch:
        results = await target.send(workload, progress=not args.no_progress, max_concurrency=load.concurrency)
    summary = summarize(results, ttft_bound_s=args.ttft_bound, itl_bound_s=args.itl_bound)
    return results, {**summary, "load": load.value, "server": watch.facts}


def describe_workload(args: argparse.Namespace, planned: Workload) -> dict[str, Any]:
    """Return what was asked, for the result's file."""
    return {
        "name": args.workload,
        "scale": args.scale,
        "rate_scale": args.rate_scale,
        "seed": args.seed,
        "vocab_size": args.vocab_size,
        "num_requests": len(planned.requests),
        "prompt_tokens": [len(request.prompt) for request in planned.requests],
        "max_tokens": [request.max_tokens for request in planned.requests],
        "arrivals_s": [request.arrival_s for request in planned.requests],
    }


def print_report(args: argparse.Namespace, target: Target, runs: dict[Load, list[dict[str, Any]]]) -> None:
    """Print what was measured, as Markdown, and what a reader must know about it."""
    all_runs = [summary for found in runs.values() for summary in found]
    print(f"\n`{args.workload}` x{args.scale:g} against {target.model}, {target.dialect.name}\n")
    print(markdown_table({load.name: found for load, found in runs.items()}))
    for name, key in SERVER_ROWS.items():
        if any(key in summary["server"] for summary in all_runs):
            cells = (f"{max(summary['server'].get(key, 0.0) for summary in found):.3g}" for found in runs.values())
            print(f"| {name} | {' | '.join(cells)} |")
    print(f"\ngood: first token within {args.ttft_bound:g} s, 99% of a request's gaps within {args.itl_bound:g} s")
    most = max((summary["tokens_per_event"] or 1.0 for summary in all_runs), default=1.0)
    if most > 1.02:
        print(
            f"events had up to {most:.2f} tokens on average: ITL is between events, rates are from the server's usage"
        )
    if any(summary["tokens_counted_by"] == "events" for summary in all_runs):
        print("the server sent no usage: a token is an event")
    if any(summary["client_lag_s"] > 0.01 for summary in all_runs):
        print(f"the client was late by up to {max(summary['client_lag_s'] for summary in all_runs):.3f} s")
    for error in sorted({error for summary in all_runs for error in summary["errors"]}):
        print(f"error: {error}")


def draw(
    args: argparse.Namespace,
    target: Target,
    runs: dict[Load, list[dict[str, Any]]],
    last: list[RequestResult],
    *,
    name: str,
) -> None:
    """Draw the sweep, if it is one, else the last run over time."""
    path = args.out / f"{name}.png"
    title = f"{args.workload} x{args.scale:g}, {target.model}"
    if len(runs) > 1:
        unit = "requests per second" if args.rate else "requests at once"
        plot_sweep([found[0] for found in runs.values()], path, title=title, unit=unit)
    else:
        plot_timeline(last, path, title=title)
    print("drew", path)
