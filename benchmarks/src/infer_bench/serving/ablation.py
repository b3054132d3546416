"""The serving ladder: what each optimization is worth. Starts our server once a step, each with one switch more.

    static ──> + continuous ──> + paged ──> + chunked prefill ──> + prefix caching

All steps have the same model, the same bytes for keys and values, and the same requests; on each, five workloads run
over HTTP. Then every claim about a step is judged by the numbers, and the report says so where one did not hold. Sizes,
chunk and rates are scaled by one factor, which the profile says; `ablation_steps.py` says why it is that one.

    uv run infer-bench ablation --profile cpu
    uv run infer-bench ablation --profile gpu --dry-run
"""

import asyncio
import os
import statistics
from collections.abc import Sequence
from dataclasses import asdict, replace
from fractions import Fraction
from typing import Any

from infer_bench.client.load import run_workload
from infer_bench.client.summary import summarize
from infer_bench.client.workloads import Workload
from infer_bench.results import IMAGES, argument_parser, save
from infer_bench.server.launch import serving
from infer_bench.server.metrics import watching
from infer_bench.serving.ablation_claims import COLUMNS, ONE_BY_ONE, count_capacity, judge, report
from infer_bench.serving.ablation_steps import PROFILES, WORKLOADS, Profile, flags, plan, server_options
from infer_bench.serving.plots import plot_ladder
from infer_bench.shapes import SHAPES
from infer_engine import EngineConfig

CONTENTS_OF_WARMUP = 10_000
METRICS = tuple(dict.fromkeys(metric for _, metric in COLUMNS.values()))

Runs = dict[str, dict[str, list[dict[str, Any]]]]
"""By step, by workload: one summary a round."""


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the ablation of each shape; print, draw and save what was found."""
    parser = argument_parser(__doc__)
    parser.add_argument("--profile", choices=sorted(PROFILES), default="cpu")
    parser.add_argument("--workload", choices=WORKLOADS, action="append", help="only these; result not saved")
    parser.add_argument("--rounds", type=int, default=1, help="of all steps; medians are compared")
    parser.add_argument("--scale", type=float, help="in place of the profile's factor; result not saved")
    parser.add_argument("--dry-run", action="store_true", help="print the plan and start nothing")
    args = parser.parse_args(arguments)
    profile = PROFILES[args.profile]
    profile = replace(profile, scale=args.scale or profile.scale)
    workloads = tuple(args.workload or WORKLOADS)
    for shape in profile.shapes:
        print_plan(profile, shape, workloads)
        if args.dry_run:
            continue
        runs = measure_all(profile, shape, workloads, rounds=args.rounds)
        medians = medians_of(runs)
        capacity = count_capacity()
        claims = judge(medians, capacity=capacity)
        print(report(medians, claims))
        if args.workload or args.scale is not None:
            continue
        name = f"ablation-{profile.name}" + ("" if len(profile.shapes) == 1 else f"-{shape}")
        result = {
            "profile": asdict(profile),
            "shape": {"name": shape, **SHAPES[shape]},
            "steps": {step: flags(options) for step, options in server_options(profile, shape).items()},
            "medians": medians,
            "capacity": capacity,
            "claims": [claim._asdict() for claim in claims],
            "rounds": runs,
        }
        save(name, result, args.out)
        sizes = f"sizes and rates x{Fraction(profile.scale)}, equal KV memory"
        plot_ladder(medians, IMAGES / f"{name}.png", title=f"The serving ladder: {shape} on {profile.device}, {sizes}")


def measure_all(profile: Profile, shape: str, workloads: Sequence[str], *, rounds: int) -> Runs:
    """Run each workload on each step's server, of random weights; `rounds` times, each with other prompts."""
    runs: Runs = {}
    if profile.num_threads is not None:
        os.environ["OMP_NUM_THREADS"] = str(profile.num_threads)  # servers inherit it; this process computes nothing
    warm_up = plan(profile, shape, "mixed", contents=CONTENTS_OF_WARMUP)
    warm_up = replace(warm_up, name="warm-up", requests=warm_up.requests[:4])
    for number in range(rounds):
        planned = [plan(profile, shape, name, contents=number) for name in workloads]
        for step, options in server_options(profile, shape).items():
            workloads_of_step = workloads_of(step, planned)
            if not workloads_of_step:
                continue
            with serving(flags(options), shape=shape) as server:
                found = asyncio.run(measure(server.url, workloads_of_step, warm_up=warm_up))
            for workload, summary in found:
                runs.setdefault(step, {}).setdefault(workload, []).append(summary)
    return runs


async def measure(url: str, workloads: Sequence[Workload], *, warm_up: Workload) -> list[tuple[str, dict[str, Any]]]:
    """Run `workloads` one after another; return each one's summary, with what the server's metrics said meanwhile.

    Raises:
        RuntimeError: a request failed: what is left is another workload, and no step may profit from that.
    """
    await run_workload(url, warm_up, progress=False)
    found = []
    for workload in workloads:
        async with watching(url, headers={}) as watch:
            results = await run_workload(url, workload)
        summary = summarize(results)
        if summary["num_errors"]:
            raise RuntimeError(f"{summary['num_errors']} requests of {workload.name} failed: {summary['errors']}")
        found.append((workload.name, {**summary, **watch.facts, "machine_load": os.getloadavg()[0]}))
    return found


def print_plan(profile: Profile, shape: str, workloads: Sequence[str]) -> None:
    """Print each server's flags and each workload's size.

    Raises:
        ValueError: a step's flags contradict each other, or a request is longer than `max_seq_len`.
    """
    print(f"# {profile.name}: {shape}, lengths, chunk and arrivals per second x{profile.scale:g}\n")
    for step, options in server_options(profile, shape).items():
        EngineConfig(**options)
        print(f"{step:10} infer-server {' '.join(flags(options))}")
    print()
    for name in workloads:
        workload = plan(profile, shape, name)
        if workload.longest > profile.max_seq_len:
            raise ValueError(f"`{name}` has a request of {workload.longest} tokens, above {profile.max_seq_len}.")
        num_prompt = sum(len(request.prompt) for request in workload.requests)
        num_new = sum(request.max_tokens for request in workload.requests)
        seconds = workload.requests[-1].arrival_s
        print(
            f"{name:20} {len(workload.requests)} requests over {seconds:.1f} s, {num_prompt} tokens in, {num_new} out"
        )


def workloads_of(step: str, planned: Sequence[Workload]) -> list[Workload]:
    """Return what a step's server is asked: all that is planned; the control and `paged` have their own lists."""
    if step == "capped":
        return [workload for workload in planned if workload.name == "chunked_prefill"]
    mixed = [workload for workload in planned if workload.name == "mixed" and step == "paged"]
    return [*planned, *(replace(workload, name=ONE_BY_ONE, is_closed_loop=True) for workload in mixed)]


def medians_of(runs: Runs) -> dict[str, dict[str, dict[str, float]]]:
    """Return the median over the rounds of every metric of the table."""
    return {
        step: {
            workload: {metric: statistics.median(_value(summary, metric) for summary in found) for metric in METRICS}
            for workload, found in row.items()
        }
        for step, row in runs.items()
    }


def _value(summary: dict[str, Any], metric: str) -> float:
    """Return a summary's metric; `ttft_p50_s` is its `p50` of `ttft_s`."""
    name, *percent = metric.removesuffix("_s").split("_p")
    return float(summary[f"{name}_s"][f"p{percent[0]}"] if percent and percent[0].isdigit() else summary[metric])
