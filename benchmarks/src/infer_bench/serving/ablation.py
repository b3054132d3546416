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
from pathlib import Path
from typing import Any

from infer_bench.client.load import run_workload
from infer_bench.client.summary import summarize
from infer_bench.client.workloads import Workload, make_workload
from infer_bench.results import IMAGES, argument_parser, save
from infer_bench.server.launch import serving
from infer_bench.server.metrics import watching
from infer_bench.serving.ablation_claims import METRICS, ONE_BY_ONE, flatten, judge, report
from infer_bench.serving.ablation_figure import draw
from infer_bench.serving.ablation_steps import (
    FULL_SEQ_LEN,
    PROFILES,
    SLOTS,
    AblationStep,
    Profile,
    ablation_steps,
    control,
    engine_options,
    flags,
)
from infer_bench.serving.kv_capacity import count_capacity
from infer_bench.shapes import SHAPES
from infer_engine import EngineConfig

WORKLOADS = ("mixed", "continuous_batching", "paged_attention", "chunked_prefill", "prefix_caching")
CONTENTS_OF_WARMUP = 10_000

Runs = dict[str, dict[str, list[dict[str, Any]]]]
"""By step, by workload: one summary a round."""


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the ablation of each shape; print, draw and save what was found."""
    parser = argument_parser(__doc__)
    parser.add_argument("--profile", choices=sorted(PROFILES), default="cpu")
    parser.add_argument("--shape", choices=sorted(SHAPES), action="append", help="in place of the profile's shapes")
    parser.add_argument("--workload", choices=WORKLOADS, action="append", help="only these; result not saved")
    parser.add_argument("--rounds", type=int, default=1, help="of all steps; medians are compared")
    parser.add_argument("--scale", type=float, help="in place of the profile's factor; result not saved")
    parser.add_argument("--dry-run", action="store_true", help="print the plan and start nothing")
    parser.add_argument("--images", type=Path, default=IMAGES)
    args = parser.parse_args(arguments)
    profile = PROFILES[args.profile]
    profile = replace(profile, shapes=tuple(args.shape or profile.shapes), scale=args.scale or profile.scale)
    workloads = tuple(args.workload or WORKLOADS)
    for shape in profile.shapes:
        print_plan(profile, shape, workloads)
        if args.dry_run:
            continue
        runs = measure_all(profile, shape, workloads, rounds=args.rounds)
        capacity = count_capacity(num_slots=SLOTS, num_tokens=256, max_seq_len=FULL_SEQ_LEN)
        medians = medians_of(runs)
        claims = judge(medians, capacity=capacity)
        labels = {step.name: step.label for step in all_steps(profile)}
        print(report(medians, claims, labels=labels))
        if workloads != WORKLOADS or args.scale is not None:
            continue
        name = f"ablation-{profile.name}" + ("" if PROFILES[profile.name].shapes == (shape,) else f"-{shape}")
        result = {
            "profile": asdict(profile),
            "shape": {"name": shape, **SHAPES[shape]},
            "steps": {step.name: flags(engine_options(profile, shape, step.options)) for step in all_steps(profile)},
            "metrics": list(METRICS),
            "medians": medians,
            "capacity": asdict(capacity),
            "claims": [asdict(claim) for claim in claims],
            "rounds": runs,
        }
        save(name, result, args.out)
        sizes = f"sizes and rates x{Fraction(profile.scale)}, equal KV memory"
        title = f"The serving ladder: {shape} on {profile.device}, {sizes}"
        print("drew", draw(medians, labels, args.images / f"{name}.png", title=title))


def all_steps(profile: Profile) -> list[AblationStep]:
    """Return the steps and the control."""
    return [*ablation_steps(profile), control(profile)]


def measure_all(profile: Profile, shape: str, workloads: Sequence[str], *, rounds: int) -> Runs:
    """Run each workload on each step's server, of random weights; `rounds` times, each with other prompts."""
    runs: Runs = {}
    if profile.num_threads is not None:
        os.environ["OMP_NUM_THREADS"] = str(profile.num_threads)  # servers inherit it; this process computes nothing
    warm_up = plan(profile, shape, "mixed", contents=CONTENTS_OF_WARMUP)
    warm_up = replace(warm_up, name="warm-up", requests=warm_up.requests[:4])
    for number in range(rounds):
        planned = [plan(profile, shape, name, contents=number) for name in workloads]
        for step in all_steps(profile):
            workloads_of_step = workloads_of(step.name, planned)
            if not workloads_of_step:
                continue
            with serving(flags(engine_options(profile, shape, step.options)), shape=shape) as server:
                found = asyncio.run(measure(server.url, workloads_of_step, warm_up=warm_up))
            for workload, summary in found:
                runs.setdefault(step.name, {}).setdefault(workload, []).append(summary)
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


def plan(profile: Profile, shape: str, name: str, *, contents: int = 0) -> Workload:
    """Return the workload `name` at the profile's size."""
    return make_workload(
        name,
        scale=profile.scale,
        rate_scale=profile.scale,
        vocab_size=SHAPES[shape]["vocab_size"],
        contents=contents,
    )


def print_plan(profile: Profile, shape: str, workloads: Sequence[str]) -> None:
    """Print each server's flags and each workload's size.

    Raises:
        ValueError: a step's flags contradict each other, or a request is longer than `max_seq_len`.
    """
    print(f"# {profile.name}: {shape}, lengths, chunk and arrivals per second x{profile.scale:g}\n")
    for step in all_steps(profile):
        options = engine_options(profile, shape, step.options)
        EngineConfig(**options)
        print(f"{step.name:10} infer-server {' '.join(flags(options))}")
    print()
    for name in workloads:
        workload = plan(profile, shape, name)
        if workload.longest > profile.max_seq_len:
            raise ValueError(f"`{name}` has a request of {workload.longest} tokens, above {profile.max_seq_len}.")
        prompts = [len(request.prompt) for request in workload.requests]
        answers = [request.max_tokens for request in workload.requests]
        print(
            f"{name:20} {len(prompts)} requests over {workload.requests[-1].arrival_s:.1f} s, "
            f"prompts of {min(prompts)}-{max(prompts)} tokens ({sum(prompts)} in all), "
            f"answers of {min(answers)}-{max(answers)} ({sum(answers)})"
        )


def workloads_of(step: str, planned: Sequence[Workload]) -> list[Workload]:
    """Return what a step's server is asked: all that is planned; the control and `paged` have their own lists."""
    if step == "capped":
        return [workload for workload in planned if workload.name == "chunked_prefill"]
    mixed = [workload for workload in planned if workload.name == "mixed" and step == "paged"]
    return [*planned, *(replace(workload, name=ONE_BY_ONE, is_closed_loop=True) for workload in mixed)]


def medians_of(runs: Runs) -> dict[str, dict[str, dict[str, float]]]:
    """Return the median over the rounds of every metric of the table."""

    def median(summaries: Sequence[dict[str, Any]]) -> dict[str, float]:
        rounds = [flatten(summary) for summary in summaries]
        return {name: statistics.median(values[name] for values in rounds) for name in METRICS}

    return {step: {workload: median(found) for workload, found in row.items()} for step, row in runs.items()}
