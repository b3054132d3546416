"""Loads on a server: seeded workloads against any server of the OpenAI API that takes token ids, timed by a client.

    uv run infer-bench serving --workload mixed                               # ours, the demo model
    uv run infer-bench serving --workload all --scale 0.4 --rate-scale 0.5    # each in turn, on one server
    uv run infer-bench serving --shape smollm-135m --serve --max-batch-size 16
    uv run infer-bench serving --checkpoint HuggingFaceTB/SmolLM2-135M-Instruct --documentation --workload all
    uv run infer-bench serving --url http://127.0.0.1:8000 --workload chunked_prefill --rate 2
    uv run infer-bench serving --url http://127.0.0.1:8000 --workload mixed --concurrency 1 2 4 8 16 32

Arrivals are the workload's own (open loop, `baseline` one after another), Poisson with `--rate R`, or a closed loop of
`--concurrency N`; with several values of these, each is a point of a plot of latency against throughput.
"""

import argparse
import asyncio
import gc
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from http import HTTPStatus
from importlib.util import find_spec
from typing import Any, NamedTuple

from infer_bench.client.http import http_client
from infer_bench.client.load import RequestResult, run_workload
from infer_bench.client.summary import ITL_BOUND_S, TTFT_BOUND_S, combine, spread_words, summarize
from infer_bench.client.workloads import WORKLOADS, Workload, make_workload, with_poisson_arrivals
from infer_bench.limits import Limit, judge
from infer_bench.results import argument_parser, documentation, save, table
from infer_bench.server.launch import OwnServer, serving
from infer_bench.server.metrics import describe, served_model, watching
from infer_bench.shapes import SHAPES

VOCAB_SIZE = 512
"""Prompts are of these ids, which every vocabulary has: the same prompts for every model."""
LOOPS = 4
"""Requests of a closed loop for each that is open at once, at least: its begin and end are then the smaller part."""
WARM_UP_CONTENTS, WARM_UP_REQUESTS = 1_000_000, 4
"""Prompts that no measured run has, and how many are sent before the first."""
ALL, ROUNDS = "all", 3
"""The name that stands for every workload, and how often a single load is run."""
COLUMNS = (
    "output tokens/s",
    *(f"{name} P{percent}, ms" for name in ("TTFT", "ITL", "latency") for percent in (50, 99)),
    "decoding at once, mean",
    "errors",
)
"""Rows of `combine` that are columns of the table of all workloads."""
SERVER_ROWS = {
    "KV occupancy, peak": "kv_occupancy_peak",
    "preemptions": "num_preemptions",
    "mean queue time, s": "mean_queue_time_s",
}
"""Rows of the table that the server's own metrics give."""


class Load(NamedTuple):
    """The arrivals of requests: by the workload's own plan, unless one of the two is given.

    Attributes:
        rate: Poisson arrivals per second.
        concurrency: requests open at once in a closed loop.
    """

    rate: float | None = None
    concurrency: int | None = None

    @property
    def name(self) -> str:
        """Its name in tables."""
        if self.concurrency is not None:
            return f"{self.concurrency} at once"
        return "its own arrivals" if self.rate is None else f"{self.rate:g} per second"


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, print a table, draw, and save the result; return 1 if a request failed."""
    args = read_arguments(arguments)
    gc.freeze()  # the client's own pauses are no gaps of the server's
    with target_server(args) as (url, own):
        result = asyncio.run(measure(args, url, own))
    return judge([Limit(what="requests that failed", value=count_errors(result), most=0)])


def read_arguments(arguments: Sequence[str] | None) -> argparse.Namespace:
    """Return the command line's flags, checked."""
    parser = argument_parser(__doc__, quick="one run at a tenth of the lengths")
    parser.add_argument("--url", help="of a running server; left out: ours is started")
    parser.add_argument("--model", help="the model's name in requests; left out: the first that the server lists")
    parser.add_argument("--api-key")
    parser.add_argument("--checkpoint", help="folder or Hub id that our server loads; left out: the demo model")
    parser.add_argument("--shape", choices=sorted(SHAPES), help="our server has random weights of this shape")
    parser.add_argument("--serve", nargs=argparse.REMAINDER, default=[], help="flags of our server; must come last")
    parser.add_argument("--workload", choices=(*WORKLOADS, ALL), default="mixed")
    parser.add_argument(
        "--documentation",
        action="store_true",
        help="prompts are pieces of this project's pages, by the server's `/tokenize`; left out: random token ids",
    )
    parser.add_argument("--scale", type=float, default=1.0, help="factor on the lengths of prompts and answers")
    parser.add_argument("--rate-scale", type=float, default=1.0, help="factor on the workload's own arrival rate")
    parser.add_argument("--requests", type=int, help="how many; default: the workload's own number, or more")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--rate", type=float, nargs="+", help="Poisson arrivals per second")
    parser.add_argument("--concurrency", type=int, nargs="+", help="closed loop of so many requests at once")
    parser.add_argument(
        "--rounds", "--repeats", type=int, help="runs of each load; default 3, 1 for each of several loads"
    )
    parser.add_argument("--no-progress", action="store_true")
    parser.add_argument("--name", help="of the result's file; left out: by the workload")
    args = parser.parse_args(arguments)
    if args.url and (args.checkpoint or args.shape or args.serve):
        parser.error("`--url` names a running server: `--checkpoint`, `--shape` and `--serve` are for ours")
    if args.checkpoint and args.shape:
        parser.error("`--checkpoint` and `--shape` are two models: give one")
    if args.rate and args.concurrency:
        parser.error("`--rate` and `--concurrency` exclude each other")
    if args.workload == ALL and (args.rate or args.concurrency or args.requests):
        parser.error("`--workload all` has the workloads' own arrivals and numbers: name one workload")
    if args.quick:
        args.scale, args.rounds = args.scale * 0.1, 1
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


async def measure(args: argparse.Namespace, url: str, own: OwnServer | None) -> dict[str, Any]:
    """Warm up, run every load or every workload as often as asked, report; return the result."""
    told = await describe(url, headers=headers_of(args))
    listed, context = served_model(told)
    args.model = args.model or listed
    args.text = await tokenize(args, url, documentation()) if args.documentation else ()
    names = WORKLOADS if args.workload == ALL else (args.workload,)
    check_lengths(args, names, context)
    await warm_up(args, "mixed" if args.workload == ALL else args.workload, url)
    result = {
        "target": {"url": url, "model": args.model, "told": told},
        "own_server": {"url": own.url, "flags": own.flags, "banner": own.banner} if own else None,
    }
    if args.workload == ALL:
        runs = [
            [(await measure_once(args, name, url, Load(), contents=number))[1] for name in names]
            for number in range(args.rounds or ROUNDS)
        ]
        result["workloads"] = {
            name: {"workload": describe_workload(args, name), "runs": list(found), "spread": combine(found)}
            for name, found in zip(names, zip(*runs, strict=True), strict=True)
        }
        print(f"\n`{title_of(args)}`\n\n{workloads_table(result)}")
    else:
        result |= await measure_loads(args, url)
        print(f"\n`{title_of(args)}`\n\n{load_table(result)}")
    save(args.name or f"serving-{args.workload}", result, args)
    return result


def count_errors(result: Mapping[str, Any]) -> int:
    """Return how many requests of all runs failed, of one workload or of all."""
    measured = result["workloads"].values() if "workloads" in result else result["runs"]
    return sum(run["num_errors"] for each in measured for run in each["runs"])


async def measure_loads(args: argparse.Namespace, url: str) -> dict[str, Any]:
    """Run one workload under every load, draw it, and return what was asked and every run."""
    loads = [Load(rate=rate) for rate in args.rate or ()] + [Load(concurrency=n) for n in args.concurrency or ()]
    loads = loads or [Load()]
    runs: dict[Load, list[dict[str, Any]]] = {load: [] for load in loads}
    last: list[RequestResult] = []
    for number in range(args.rounds or (1 if len(loads) > 1 else ROUNDS)):
        for position, load in enumerate(loads):
            contents = number * len(loads) + position
            last, summary = await measure_once(args, args.workload, url, load, contents=contents)
            runs[load].append(summary)
    if find_spec("matplotlib") is not None:  # a machine of first light may lack it
        draw(args, runs, last)
    return {
        "workload": describe_workload(args, args.workload),
        "runs": [{**load._asdict(), "runs": found, "spread": combine(found)} for load, found in runs.items()],
    }


def draw(args: argparse.Namespace, runs: Mapping[Load, list[dict[str, Any]]], last: list[RequestResult]) -> None:
    """Draw the sweep over several loads, or every request of the `last` run of one."""
    from infer_bench.plots import plot_sweep, plot_timeline  # noqa: PLC0415 - imports matplotlib

    path = args.out / f"serving-{args.workload}.png"
    if len(runs) > 1:
        points = {load.concurrency or load.rate or 0.0: found[0] for load, found in runs.items()}
        plot_sweep(points, path, title=title_of(args), unit="requests per second" if args.rate else "requests at once")
    else:
        plot_timeline(last, path, title=title_of(args))


def check_lengths(args: argparse.Namespace, names: Sequence[str], context: int | None) -> None:
    """End the benchmark where a request is longer than the context that the server tells of."""
    plans = (plan(args, name, contents=0, num_requests=args.requests) for name in names)
    longest = max(plans, key=lambda planned: planned.longest)
    if context is not None and longest.longest > context:
        raise SystemExit(
            f"{longest.name} has requests of {longest.longest} tokens but {args.model} takes {context}; "
            f"use `--scale {0.98 * args.scale * context / longest.longest:.2g}` or less."
        )


def title_of(args: argparse.Namespace) -> str:
    """Return what was run on what."""
    return f"{args.workload} x{args.scale:g}, {args.model}"


def headers_of(args: argparse.Namespace) -> dict[str, str]:
    """Return what every request carries."""
    return {"Authorization": f"Bearer {args.api_key}"} if args.api_key else {}


async def tokenize(args: argparse.Namespace, url: str, text: str) -> list[int]:
    """Return the tokens of a text, as the server sees them."""
    body = {"model": args.model, "prompt": text, "add_special_tokens": False}
    async with http_client(url, headers=headers_of(args)) as client:
        reply = await client.post("/tokenize", json=body)
    if reply.status_code != HTTPStatus.OK:
        raise SystemExit(f"`/tokenize` answers {reply.status_code}: {reply.text[:300]}")
    tokens: list[int] = reply.json()["tokens"]
    return tokens


def plan(args: argparse.Namespace, name: str, *, contents: int, num_requests: int | None) -> Workload:
    """Return the workload `name`, of `num_requests` or as many as it has; `contents` chooses the prompts."""
    sizes = {"scale": args.scale, "rate_scale": args.rate_scale, "seed": args.seed, "vocab_size": VOCAB_SIZE}
    return make_workload(name, **sizes, contents=contents, text=args.text, num_requests=num_requests)


async def warm_up(args: argparse.Namespace, name: str, url: str) -> None:
    """Send a few requests of other contents, and stop where the server refuses them."""
    workload = plan(args, name, contents=WARM_UP_CONTENTS, num_requests=WARM_UP_REQUESTS)
    results = await run_workload(
        url,
        replace(workload, is_closed_loop=True),
        model=args.model,
        progress=False,
        max_concurrency=WARM_UP_REQUESTS,
        api_key=args.api_key,
    )
    if all(result.error for result in results):
        raise SystemExit(f"{url} refused the warm-up: {results[0].error}")


async def measure_once(
    args: argparse.Namespace, name: str, url: str, load: Load, *, contents: int
) -> tuple[list[RequestResult], dict[str, Any]]:
    """Run once; return the results and their summary, with the server's own metrics where it has them."""
    workload = plan(args, name, contents=contents, num_requests=args.requests)
    if load.concurrency is not None:
        count = args.requests or max(len(workload.requests), LOOPS * load.concurrency)
        workload = replace(plan(args, name, contents=contents, num_requests=count), is_closed_loop=True)
    elif load.rate is not None:
        workload = with_poisson_arrivals(workload, rate=load.rate, seed=args.seed)
    async with watching(url, headers=headers_of(args)) as watch:
        results = await run_workload(
            url,
            workload,
            model=args.model,
            progress=not args.no_progress,
            max_concurrency=load.concurrency or 1,
            api_key=args.api_key,
        )
    return results, {**summarize(results), "server": watch.facts}


def describe_workload(args: argparse.Namespace, name: str) -> dict[str, Any]:
    """Return what was asked, for the result's file."""
    planned = plan(args, name, contents=0, num_requests=args.requests)
    return {
        "workload": name,
        **{flag: getattr(args, flag) for flag in ("scale", "rate_scale", "seed")},
        "prompts_of": "documentation" if args.documentation else f"{VOCAB_SIZE} token ids",
        "prompt_tokens": [len(request.prompt) for request in planned.requests],
        "max_tokens": [request.max_tokens for request in planned.requests],
        "arrivals_s": [request.arrival_s for request in planned.requests],
    }


def workloads_table(result: Mapping[str, Any]) -> str:
    """Return a row for each workload of a result of `--workload all`, as its JSON file has it."""
    rows = [
        [f"`{name}`", *(spread_words(each["spread"][column]) for column in COLUMNS)]
        for name, each in result["workloads"].items()
    ]
    return table(["workload", *COLUMNS], rows)


def load_table(result: Mapping[str, Any]) -> str:
    """Return a column for each load of a result, as its JSON file has it, and what a reader must know about it."""
    runs = {Load(each["rate"], each["concurrency"]): each["runs"] for each in result["runs"]}
    all_runs = [summary for found in runs.values() for summary in found]
    combined = [combine(found) for found in runs.values()]
    rows = [[row, *(spread_words(spreads[row]) for spreads in combined)] for row in combined[0]]
    for name, key in SERVER_ROWS.items():
        if any(key in summary["server"] for summary in all_runs):
            peaks = (max(summary["server"].get(key, 0.0) for summary in found) for found in runs.values())
            rows.append([name, *(f"{peak:.3g}" for peak in peaks)])
    lines = [
        table(["", *(load.name for load in runs)], rows),
        f"\ngood: first token within {TTFT_BOUND_S:g} s, 99% of a request's gaps within {ITL_BOUND_S:g} s",
    ]
    most = max(summary["tokens_per_event"] or 1.0 for summary in all_runs)
    if most > 1.02:
        lines.append(f"events had up to {most:.2f} tokens on average: ITL is between events")
    lag_s = max(summary["client_lag_s"] for summary in all_runs)
    if lag_s > 0.01:
        lines.append(f"the client was late by up to {lag_s:.3f} s")
    lines += [f"error: {error}" for error in sorted({error for summary in all_runs for error in summary["errors"]})]
    return "\n".join(lines)
