"""The serving ladder: what each optimization is worth. Starts our server once a step, each with one switch more.

    one by one ──> + static batches ──> + continuous ──> + paged ──> + as many as fit
               ──> + one prompt a step ──> + chunked prefill ──> + prefix caching ──> + few prompt tokens beside decodes

All steps have the same model, the same bytes for keys and values, and the same requests; each runs over HTTP the
workloads that claims compare on it, and the last two run all. Then chunked prefill runs without its cap and with chunks
of other sizes. Every claim about a step is judged by the numbers, and the report says so where one did not hold. Sizes,
chunks and rates are scaled by one factor, which the profile says; `ablation_plan.py` says why it is that one.

    uv run infer-bench ablation --profile cpu
    uv run infer-bench ablation --step paged --step chunked --workload chunked_prefill
    uv run infer-bench ablation --profile gpu --dry-run
"""

import argparse
import asyncio
import os
import signal
import statistics
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from fractions import Fraction
from pathlib import Path
from typing import Any

from infer_bench.client.load import run_workload
from infer_bench.client.summary import summarize
from infer_bench.client.workloads import WORKLOADS, Workload
from infer_bench.results import argument_parser, save, table
from infer_bench.server.launch import serving
from infer_bench.server.metrics import watching
from infer_bench.serving.ablation_plan import (
    BLOCK_SIZE,
    CHUNKS,
    FULL_CHUNK,
    FULL_SEQ_LEN,
    LABELS,
    LENGTHS,
    ONE_BY_ONE,
    ONLY_CHUNKED,
    PROFILES,
    RUNS,
    SLOTS,
    STEPS,
    Capacity,
    Measured,
    Profile,
    flags,
    judge,
    metric_words,
    plan,
    server_options,
)
from infer_bench.serving.plots import plot_ladder
from infer_bench.shapes import SHAPES
from infer_cache import ContiguousKVCacheManager, PagedKVCacheManager
from infer_engine import EngineConfig

CONTENTS_OF_WARMUP, REQUESTS_OF_WARMUP = 10_000, 4
REQUESTS_OF_QUICK = 8

Runs = dict[str, dict[str, list[dict[str, Any]]]]
"""By step, by workload: one summary a round."""
Pairs = dict[str, list[str]]
"""By step, the names of the workloads that run on it."""

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
    "TTFT P50": "ttft_p50_s",
    "TTFT P99": "ttft_p99_s",
    "ITL P50": "itl_p50_s",
    "ITL P99": "itl_p99_s",
    "decoding, mean": "num_decoding_mean",
    "most": "num_decoding_peak",
}
"""Columns of the table of every run: heading and metric."""
METRICS = tuple(dict.fromkeys([*(metric for _, metric in COLUMNS.values()), *LATENCIES.values(), "kv_occupancy_peak"]))
"""What a result has of each step and workload, as medians over the rounds."""

Result = Mapping[str, Any]


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the ablation of each shape; print, draw and save what was found."""
    args = read_arguments(arguments)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # not without ending our server
    profile = PROFILES[args.profile]
    profile = replace(profile, scale=args.scale or profile.scale)
    pairs = choose_pairs(args.step, args.workload)
    num_requests, rounds = (REQUESTS_OF_QUICK, 1) if args.quick else (None, args.rounds)
    is_partial = args.quick or args.step or args.workload or args.scale
    for shape in profile.shapes:
        print_plan(profile, shape, pairs, num_requests=num_requests)
        if args.dry_run:
            continue
        runs = measure_all(profile, shape, pairs, rounds=rounds, num_requests=num_requests)
        result = result_of(profile, shape, runs)
        print(report(result))
        if is_partial:
            continue
        name = f"ablation-{profile.name}" + ("" if len(profile.shapes) == 1 else f"-{shape}")
        save(name, result, args.out)
        draw_ladder(result, args.out / f"{name}.png")


def read_arguments(arguments: Sequence[str] | None) -> argparse.Namespace:
    """Return the command line's flags."""
    quick = f"one round of the first {REQUESTS_OF_QUICK} requests of each workload"
    parser = argument_parser(__doc__, quick=quick, rounds=1)
    parser.add_argument("--profile", choices=sorted(PROFILES), default="cpu")
    parser.add_argument("--workload", choices=WORKLOADS, action="append", help="only these; result not saved")
    parser.add_argument("--step", choices=LABELS, action="append", help="only these; result not saved")
    parser.add_argument("--scale", type=float, help="in place of the profile's factor; result not saved")
    parser.add_argument("--dry-run", action="store_true", help="print the plan and start nothing")
    return parser.parse_args(arguments)


def choose_pairs(steps: Sequence[str] | None = None, workloads: Sequence[str] | None = None) -> Pairs:
    """Return what runs: all of `RUNS`, or of the steps and the workloads that are named; no step without a workload."""
    wanted = set(workloads or WORKLOADS)
    if "mixed" in wanted:
        wanted.add(ONE_BY_ONE)
    pairs = {
        step: [name for name in names if name in wanted] for step, names in RUNS.items() if not steps or step in steps
    }
    return {step: names for step, names in pairs.items() if names}


def measure_all(profile: Profile, shape: str, pairs: Pairs, *, rounds: int, num_requests: int | None = None) -> Runs:
    """Run each step's workloads on its server, of random weights; `rounds` times, each with other prompts.

    Every other round begins with the last step, so that a machine that grows slower is no step's loss.
    """
    runs: Runs = {step: {} for step in pairs}
    if profile.num_threads is not None:
        os.environ["OMP_NUM_THREADS"] = str(profile.num_threads)  # servers inherit it; this process computes nothing
    warm_up = plan(profile, shape, "mixed", contents=CONTENTS_OF_WARMUP, num_requests=REQUESTS_OF_WARMUP)
    warm_up = replace(warm_up, name="warm-up")
    options = server_options(profile, shape)
    for number in range(rounds):
        for step in list(pairs) if number % 2 == 0 else reversed(pairs):
            planned = [plan(profile, shape, name, contents=number, num_requests=num_requests) for name in pairs[step]]
            with serving(flags(options[step]), shape=shape) as server:
                found = asyncio.run(measure(server.url, planned, warm_up=warm_up))
            for workload, summary in found:
                runs[step].setdefault(workload, []).append(summary)
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


def result_of(profile: Profile, shape: str, runs: Runs) -> dict[str, Any]:
    """Return what the result's file has: the configurations, the medians, the claims, and every round."""
    options = server_options(profile, shape)
    medians, capacities = medians_of(runs), count_capacities()
    return {
        "profile": asdict(profile),
        "shape": {"name": shape, **SHAPES[shape]},
        "options": options,
        "steps": {step: flags(each) for step, each in options.items()},
        "medians": medians,
        "capacity": [capacity._asdict() for capacity in capacities],
        "claims": [claim._asdict() for claim in judge(medians, capacities=capacities)],
        "rounds": runs,
    }


def draw_ladder(result: Mapping[str, Any], path: Path) -> None:
    """Draw the picture of a result, as its JSON file has it."""
    profile = result["profile"]
    sizes = f"sizes and rates x{Fraction(profile['scale'])}, equal KV memory"
    title = f"The serving ladder: {result['shape']['name']} on {profile['device']}, {sizes}"
    plot_ladder(result["medians"], path, title=title)


def print_plan(profile: Profile, shape: str, pairs: Pairs, *, num_requests: int | None = None) -> None:
    """Print each server's flags and each workload's size.

    Raises:
        ValueError: a step's flags contradict each other, or a request is longer than `max_seq_len`.
    """
    print(f"# {profile.name}: {shape}, lengths, chunks and arrivals per second x{profile.scale:g}\n")
    for step, options in server_options(profile, shape).items():
        EngineConfig(**options)
        if step in pairs:
            print(f"{step:10} {', '.join(pairs[step])}\n{'':10} infer-server {' '.join(flags(options))}")
    print()
    for name in dict.fromkeys(name for names in pairs.values() for name in names):
        workload = plan(profile, shape, name, num_requests=num_requests)
        if workload.longest > profile.max_seq_len:
            raise ValueError(f"`{name}` has a request of {workload.longest} tokens, above {profile.max_seq_len}.")
        num_prompt = sum(len(request.prompt) for request in workload.requests)
        num_new = sum(request.max_tokens for request in workload.requests)
        seconds = workload.requests[-1].arrival_s
        print(
            f"{name:20} {len(workload.requests)} requests over {seconds:.1f} s, {num_prompt} tokens in, {num_new} out"
        )


def medians_of(runs: Runs) -> dict[str, dict[str, dict[str, float]]]:
    """Return the median over the rounds of every metric of the tables."""
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
    measured: Measured = result["medians"]
    rows = [
        [STEPS[step], *(_cell(measured[step], workload, metric) for workload, metric in COLUMNS.values())]
        for step in STEPS
        if step in measured
    ]
    return table(["", *COLUMNS], rows)


def claims_table(result: Result) -> str:
    """Return a row a claim: its step, what it says, whether it held, and the numbers."""
    rows = [
        [LABELS[claim["step"]], claim["text"], "held" if claim["held"] else "**not held**", claim["evidence"]]
        for claim in result["claims"]
    ]
    return table(["step", "claim", "", "numbers"], rows)


def capacity_table(result: Result) -> str:
    """Return how many sequences of each length fit into slots and into blocks."""
    rows = [
        [each["num_tokens"], each["in_slots"], each["in_blocks"], f"{each['in_blocks'] / each['in_slots']:g}"]
        for each in result["capacity"]
    ]
    return table(["tokens of a sequence", "in slots", "in blocks", "times"], rows)


def caps_table(result: Result) -> str:
    """Return what whole prompts and chunks do, as many a step as fit and one a step."""
    names = {
        "paged": ("whole prompts", "as many as fit"),
        "capped": ("whole prompts", "one"),
        "uncapped": ("chunks", "as many as fit"),
        "chunked": ("chunks", "one"),
    }
    rows = [[*words, *_latencies(result, step)] for step, words in names.items() if _has_prompts(result, step)]
    return table(["computed", "in a step", *LATENCIES], rows)


def chunks_table(result: Result) -> str:
    """Return TTFT and ITL by the size of chunks, at full size and as they were run."""
    steps = {f"chunk-{size}" if size != FULL_CHUNK else "chunked": size for size in CHUNKS}
    rows = [
        [size, result["options"][step][ONLY_CHUNKED], *_latencies(result, step)]
        for step, size in steps.items()
        if _has_prompts(result, step)
    ]
    return table(["chunk", "as run, tokens", *LATENCIES], rows)


def latency_table(result: Result) -> str:
    """Return a row for each workload on each step of the ladder that ran it: P50 and P99 of TTFT and ITL, and rates."""
    measured: Measured = result["medians"]
    rows = [
        [f"`{workload}`", STEPS[step], *_latencies(result, step, workload)]
        for workload in (*WORKLOADS, ONE_BY_ONE)
        for step in STEPS
        if workload in measured.get(step, {})
    ]
    return table(["workload", "step", *LATENCIES], rows)


def _has_prompts(result: Result, step: str) -> bool:
    return "chunked_prefill" in result["medians"].get(step, {})


def _latencies(result: Result, step: str, workload: str = "chunked_prefill") -> Sequence[str]:
    return [_cell(result["medians"][step], workload, metric) for metric in LATENCIES.values()]


def _cell(row: Mapping[str, Mapping[str, float]], workload: str, metric: str) -> str:
    return metric_words(metric, row[workload][metric]) if workload in row else ""


def count_capacities(lengths: Sequence[int] = LENGTHS, *, max_seq_len: int = FULL_SEQ_LEN) -> list[Capacity]:
    """Admit sequences of each length into the engine's own tables until no other one fits.

    Returns:
        By length, how many fit into slots of `max_seq_len` tokens, and into blocks of the same memory.
    """
    blocks_per_slot = -(-max_seq_len // BLOCK_SIZE)
    return [
        Capacity(
            length,
            _fill(ContiguousKVCacheManager(SLOTS, blocks_per_slot, BLOCK_SIZE), length),
            _fill(PagedKVCacheManager([SLOTS * blocks_per_slot], BLOCK_SIZE), length),
        )
        for length in lengths
    ]


def _fill(tables: ContiguousKVCacheManager | PagedKVCacheManager, num_tokens: int) -> int:
    number = 0
    while tables.fits(num_tokens, hit := tables.find((), num_tokens)):
        tables.admit(str(number), num_tokens, hit)
        number += 1
    return number
