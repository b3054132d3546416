"""Runs the serving ladder: starts our server once a step, each with one switch more, and lets its workloads run on it.

    uv run infer-bench ablation --profile cpu
    uv run infer-bench ablation --step paged --step chunked --workload chunked_prefill
    uv run infer-bench ablation --profile gpu --dry-run

`ladder.py` has the steps and what each must show. Every claim is judged by the numbers, and the report says so where
one did not hold.
"""

import asyncio
import os
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from fractions import Fraction
from functools import partial
from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib import pyplot as plt

from infer_bench.client.load import run_workload
from infer_bench.client.summary import metric_of, metric_words, summarize
from infer_bench.client.workloads import WORKLOADS, Workload
from infer_bench.plots import ACCENT, MUTED, STYLE, save_figure
from infer_bench.results import Columns, argument_parser, columns_table, in_turns, save, table
from infer_bench.server.launch import flags_of, serving
from infer_bench.server.metrics import watching
from infer_bench.serving.ladder import (
    CHUNKS,
    LADDER,
    ONE_BY_ONE,
    ONLY_CHUNKED,
    PROFILES,
    STEPS,
    Measured,
    Profile,
    count_capacities,
    judge,
    plan,
    server_options,
)
from infer_bench.shapes import SHAPES
from infer_engine import EngineConfig

CONTENTS_OF_WARMUP, REQUESTS_OF_WARMUP, REQUESTS_OF_QUICK = 10_000, 4, 8
COLUMNS = {
    "`baseline` tokens/s": ("baseline", "output_tokens_per_s"),
    "`mixed` tokens/s": ("mixed", "output_tokens_per_s"),
    "`continuous_batching` TTFT P99": ("continuous_batching", "ttft_p99_s"),
    "decoding, mean": ("continuous_batching", "num_decoding_mean"),
    "most": ("continuous_batching", "num_decoding_peak"),
    "`paged_attention` tokens/s": ("paged_attention", "output_tokens_per_s"),
    "most decoding": ("paged_attention", "num_decoding_peak"),
    "`chunked_prefill` ITL P99": ("chunked_prefill", "itl_p99_s"),
    "TTFT P50": ("chunked_prefill", "ttft_p50_s"),
    "`prefix_caching` TTFT P50": ("prefix_caching", "ttft_p50_s"),
}
"""Columns of the ladder: heading, then the workload and its metric."""
LATENCIES = {
    "tokens/s": "output_tokens_per_s",
    **{f"{name} P{percent}": f"{name.lower()}_p{percent}_s" for name in ("TTFT", "ITL") for percent in (50, 99)},
    "decoding, mean": "num_decoding_mean",
    "most": "num_decoding_peak",
}
"""Columns of the table of every run: heading and metric."""
METRICS = (*LATENCIES.values(), "kv_occupancy_peak")
"""What a result has of each step and workload, as medians over the rounds."""
DRAWN = (
    ("Continuous batching: P99 time to first token", "continuous_batching", "ttft_p99_s", "continuous"),
    ("Paged cache: throughput of a burst", "paged_attention", "output_tokens_per_s", "paged"),
    ("Chunked prefill: P99 time between tokens", "chunked_prefill", "itl_p99_s", "chunked"),
    ("Prefix caching: median time to first token (logarithmic)", "prefix_caching", "ttft_p50_s", "prefix"),
)
"""Panels of the picture: title, workload, metric, and the step whose claim it is."""
CLAIMS: Columns = {
    "step": lambda claim: STEPS[claim["step"]].label,
    "claim": "{text}",
    "": lambda claim: "held" if claim["held"] else "**not held**",
    "numbers": "{evidence}",
}
CAPACITIES: Columns = {
    "tokens of a sequence": "{num_tokens}",
    "in slots": "{in_slots}",
    "in blocks": "{in_blocks}",
    "times": lambda each: f"{each['in_blocks'] / each['in_slots']:g}",
}
CAPS = {
    "paged": ("whole prompts", "as many as fit"),
    "capped": ("whole prompts", "one"),
    "uncapped": ("chunks", "as many as fit"),
    "chunked": ("chunks", "one"),
}
Pairs = dict[str, list[str]]
"""By step, the names of the workloads that run on it."""
Runs = dict[str, dict[str, list[dict[str, Any]]]]
"""By step, by workload: one summary a round."""
Result = Mapping[str, Any]


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the ablation of each shape; print, draw and save what was found."""
    quick = f"one round of the first {REQUESTS_OF_QUICK} requests of each workload"
    parser = argument_parser(__doc__, quick=quick, rounds=1)
    parser.add_argument("--profile", choices=sorted(PROFILES), default="cpu")
    parser.add_argument("--workload", choices=(*WORKLOADS, ONE_BY_ONE), action="append", help="only these; not saved")
    parser.add_argument("--step", choices=STEPS, action="append", help="only these; not saved")
    parser.add_argument("--dry-run", action="store_true", help="print the plan and start nothing")
    args = parser.parse_args(arguments)
    profile = PROFILES[args.profile]
    num_requests, rounds = (REQUESTS_OF_QUICK, 1) if args.quick else (None, args.rounds)
    args.quick = bool(args.quick or args.step or args.workload)
    pairs = choose_pairs(args.step, args.workload)
    for shape in profile.shapes:
        print_plan(profile, shape, pairs, num_requests=num_requests)
        if args.dry_run:
            continue
        runs = measure_all(profile, shape, pairs, rounds=rounds, num_requests=num_requests)
        result = result_of(profile, shape, runs)
        print(report(result))
        name = f"ablation-{profile.name}" + ("" if len(profile.shapes) == 1 else f"-{shape}")
        save(name, result, args)
        if not args.quick:
            draw_ladder(result, args.out / f"{name}.png")


def choose_pairs(steps: Sequence[str] | None = None, workloads: Sequence[str] | None = None) -> Pairs:
    """Return what runs: everything, or of the steps and the workloads that are named; no step without a workload."""
    pairs = {
        step: [name for name in each.workloads if not workloads or name in workloads]
        for step, each in STEPS.items()
        if not steps or step in steps
    }
    return {step: names for step, names in pairs.items() if names}


def print_plan(profile: Profile, shape: str, pairs: Pairs, *, num_requests: int | None = None) -> None:
    """Print each server's flags and each workload's size."""
    print(f"# {profile.name}: {shape}, lengths, chunks and arrivals per second x{profile.scale:g}\n")
    options = server_options(profile, shape)
    for step, names in pairs.items():
        EngineConfig(**options[step])  # which refuses flags that contradict each other
        print(f"{step:10} {', '.join(names)}\n{'':10} infer-server {' '.join(flags_of(options[step]))}")
    for name in dict.fromkeys(name for names in pairs.values() for name in names):
        workload = plan(profile, shape, name, num_requests=num_requests)
        assert workload.longest <= profile.max_seq_len
        num_prompt = sum(len(request.prompt) for request in workload.requests)
        num_new = sum(request.max_tokens for request in workload.requests)
        over = f"{len(workload.requests)} requests over {workload.requests[-1].arrival_s:.1f} s"
        print(f"{name:20} {over}, {num_prompt} tokens in, {num_new} out")


def measure_all(profile: Profile, shape: str, pairs: Pairs, *, rounds: int, num_requests: int | None = None) -> Runs:
    """Run each step's workloads on its server, of random weights; `rounds` times, each with other prompts.

    Every other round begins with the last step, so that a machine that grows slower is no step's loss.
    """
    if profile.num_threads is not None:
        os.environ["OMP_NUM_THREADS"] = str(profile.num_threads)  # servers inherit it; this process computes nothing
    warm_up = plan(profile, shape, "mixed", contents=CONTENTS_OF_WARMUP, num_requests=REQUESTS_OF_WARMUP)
    options = server_options(profile, shape)

    def turn(step: str, number: int) -> dict[str, dict[str, Any]]:
        planned = [plan(profile, shape, name, contents=number, num_requests=num_requests) for name in pairs[step]]
        with serving(flags_of(options[step]), shape=shape) as server:
            return asyncio.run(measure(server.url, planned, warm_up=replace(warm_up, name="warm-up")))

    turns = in_turns({step: partial(turn, step) for step in pairs}, rounds=rounds, warm_up=0)
    return {step: {name: [each[name] for each in found] for name in pairs[step]} for step, found in turns.items()}


async def measure(url: str, workloads: Sequence[Workload], *, warm_up: Workload) -> dict[str, dict[str, Any]]:
    """Run `workloads` one after another; return each one's summary, with what the server's metrics said meanwhile.

    Raises:
        RuntimeError: a request failed: what is left is another workload, and no step may profit from that.
    """
    await run_workload(url, warm_up, progress=False)
    found = {}
    for workload in workloads:
        async with watching(url, headers={}) as watch:
            summary = summarize(await run_workload(url, workload))
        if summary["num_errors"]:
            raise RuntimeError(f"{summary['num_errors']} requests of {workload.name} failed: {summary['errors']}")
        found[workload.name] = {**summary, **watch.facts, "machine_load": os.getloadavg()[0]}
    return found


def result_of(profile: Profile, shape: str, runs: Runs) -> dict[str, Any]:
    """Return what the result's file has: the configurations, the medians, the claims, and every round."""
    options = server_options(profile, shape)
    medians = {
        step: {
            name: {metric: statistics.median(metric_of(summary, metric) for summary in found) for metric in METRICS}
            for name, found in row.items()
        }
        for step, row in runs.items()
    }
    capacities = count_capacities()
    return {
        "profile": asdict(profile),
        "shape": {"name": shape, **SHAPES[shape]},
        "options": options,
        "steps": {step: flags_of(each) for step, each in options.items()},
        "medians": medians,
        "capacity": [
            {"num_tokens": length, "in_slots": slots, "in_blocks": blocks}
            for length, (slots, blocks) in capacities.items()
        ],
        "claims": [claim._asdict() for claim in judge(medians, capacities=capacities)],
        "rounds": runs,
    }


def draw_ladder(result: Result, path: Path) -> None:
    """Draw a panel for each of four claims, with a bar for each step that ran the claim's workload."""
    profile, measured = result["profile"], result["medians"]
    with mpl.rc_context(STYLE | {"axes.grid": False}):
        figure, panels = plt.subplots(2, 2, figsize=(10.5, 6.0), layout="constrained")
        sizes = f"sizes and rates x{Fraction(profile['scale'])}, equal KV memory"
        figure.suptitle(f"The serving ladder: {result['shape']['name']} on {profile['device']}, {sizes}")
        figure.supxlabel("blue: the step that brings it; pale: the others", fontsize=9)
        for axes, (name, workload, metric, own_step) in zip(panels.flat, DRAWN, strict=True):
            steps = [step for step in LADDER if workload in measured.get(step, {})]
            values = [measured[step][workload][metric] for step in steps]
            colors = [ACCENT if step == own_step else MUTED for step in steps]
            bars = axes.barh([LADDER[step].label for step in steps], values, color=colors)
            axes.bar_label(bars, [metric_words(metric, value) for value in values], padding=4, fontsize=9)
            axes.set_xscale("log" if own_step == "prefix" else "linear")
            axes.invert_yaxis()
            axes.margins(x=0.16)
            axes.set_title(name)
            axes.set_xlabel(f"{workload} ({'more' if metric.endswith('_per_s') else 'less'} is better)", fontsize=9)
        save_figure(figure, path)


def report(result: Result) -> str:
    """Return all tables that have rows, each under a line that says what it is."""
    tables = {
        "Each row one switch more:": ladder_table(result),
        "What each step must show:": claims_table(result),
        "Sequences that fit into the same memory:": capacity_table(result),
        "Chunks and their cap, on `chunked_prefill`:": caps_table(result),
        "Sizes of chunks, one chunk a step, on `chunked_prefill`:": chunks_table(result),
        "Every run:": latency_table(result),
    }
    return "\n".join(f"\n{heading}\n\n{text}" for heading, text in tables.items() if len(text.splitlines()) > 2)


def ladder_table(result: Result) -> str:
    """Return a row a step, with the metrics that the claims are about."""
    found: Measured = result["medians"]
    rows = [
        [step.label, *(_cell(found[name], *each) for each in COLUMNS.values())]
        for name, step in LADDER.items()
        if name in found
    ]
    return table(["", *COLUMNS], rows)


def claims_table(result: Result) -> str:
    """Return a row a claim: its step, what it says, whether it held, and the numbers."""
    return columns_table(CLAIMS, result["claims"])


def capacity_table(result: Result) -> str:
    """Return how many sequences of each length fit into slots and into blocks."""
    return columns_table(CAPACITIES, result["capacity"])


def caps_table(result: Result) -> str:
    """Return what whole prompts and chunks do, as many a step as fit and one a step."""
    return _latencies(result, ["computed", "in a step"], {(step, "chunked_prefill"): [*CAPS[step]] for step in CAPS})


def chunks_table(result: Result) -> str:
    """Return TTFT and ITL by the size of chunks, at full size and as they were run."""
    sizes = {step: [size, result["options"][step][ONLY_CHUNKED]] for step, size in CHUNKS.items()}
    runs = {(step, "chunked_prefill"): found for step, found in sizes.items()}
    return _latencies(result, ["chunk", "as run, tokens"], runs)


def latency_table(result: Result) -> str:
    """Return a row for each workload on each step of the ladder that ran it: P50 and P99 of TTFT and ITL, and rates."""
    runs = {(step, name): [f"`{name}`", LADDER[step].label] for name in (*WORKLOADS, ONE_BY_ONE) for step in LADDER}
    return _latencies(result, ["workload", "step"], runs)


def _latencies(result: Result, head: Sequence[str], runs: Mapping[tuple[str, str], Sequence[object]]) -> str:
    """Return a table of those of `runs`, by step and workload, that were measured."""
    found: Measured = result["medians"]
    rows = [
        [*words, *(_cell(found[step], name, metric) for metric in LATENCIES.values())]
        for (step, name), words in runs.items()
        if name in found.get(step, {})
    ]
    return table([*head, *LATENCIES], rows)


def _cell(row: Mapping[str, Mapping[str, float]], workload: str, metric: str) -> str:
    return metric_words(metric, row[workload][metric]) if workload in row else ""
