"""The modes part: what CUDA graphs and asynchronous scheduling are worth, and the goals for decodes and throughput.

Each engine is built once in each mode, with random weights of a real shape, and decodes the same batches:

    eager             the host launches every kernel, and waits for each step's tokens before it plans the next step
    graphs            a step's kernels are launched as one graph
    graphs and async  and the next step is planned while the device computes
    async             the same, with the host launching every kernel

The best mode comes first: it is the one that the goals are for. A rehearsal builds every engine as on any CPU.
"""

import logging
import time
import traceback
from contextlib import suppress
from random import Random
from typing import Any

import torch

from infer_bench.gpu.benchmark_core import BenchmarkCore, StepMode
from infer_bench.gpu.engine_speed import Sizes, decode, describe
from infer_bench.gpu.goals import (
    DECODE_SHAPE,
    LEAST_BOUND_SHARES,
    THROUGHPUT_SHAPE,
    judge_bound,
    judge_throughput,
)
from infer_bench.gpu.parts import Finding, PartReport, Place, failed, free_memory, left_out

logger = logging.getLogger(__name__)

BEST, GRAPHS, EAGER, ASYNC = "graphs and async", "graphs", "eager", "async"
MODES = {
    BEST: StepMode(use_cuda_graphs=True, use_async_scheduling=True),
    GRAPHS: StepMode(use_cuda_graphs=True, use_async_scheduling=False),
    EAGER: StepMode(use_cuda_graphs=False, use_async_scheduling=False),
    ASYNC: StepMode(use_cuda_graphs=False, use_async_scheduling=True),
}
"""By name, the most important first: what there is no time for is left out."""
COMPARED = (("graphs / eager", GRAPHS, EAGER), ("async / not", BEST, GRAPHS), ("async / eager", ASYNC, EAGER))
"""What is said of two modes: the first one's speed as a multiple of the second one's."""
ENGINES = (DECODE_SHAPE, THROUGHPUT_SHAPE)
ENGINE_S = 14.0
"""With less time left, no engine is built."""
BATCH_S = 4.0
"""With less time left, no batch is begun."""
WORKLOAD_S = 22.0
"""With less time left, the requests of the throughput are not begun."""
ON_GPU = Sizes(
    batches=(1, 2, 4, 8, 16, 32, 64, 128, 256), context=512, prompts=(), num_batched_tokens=8192, num_steps=24
)
REHEARSED = Sizes(batches=(1, 4), context=16, prompts=(), num_batched_tokens=64, num_steps=3)
REQUESTS, REHEARSED_REQUESTS = (256, 100, 1024), (4, 2, 9)
"""Of the throughput: how many, and the least and most tokens of a prompt and of an answer."""

Speeds = dict[str, dict[str, Any]]
"""What `decode` returned, by batch as `batch 8`."""


def run(place: Place) -> PartReport:
    """Measure every engine in every mode for which there is time, and compare the modes."""
    sizes = REHEARSED if place.is_rehearsal else ON_GPU
    report = PartReport()
    for shape in ENGINES:
        modes: dict[str, Speeds] = {}
        details = report.details[shape] = {}
        for name, mode in MODES.items():
            what = f"{shape}, {name}"
            if place.seconds_left < ENGINE_S:
                report.findings.append(left_out(what))
                continue
            modes[name], details[name] = {}, {}
            try:
                measure(place, shape, name, mode, sizes, modes[name], report.findings, details[name])
            except Exception as error:
                logger.exception("%s failed", what)
                details[name]["failure"] = traceback.format_exc()
                report.findings.append(failed(what, error))
        report.findings += [*compare(shape, modes, sizes), *judge(place, shape, details.get(BEST, {}), sizes)]
    with suppress(RuntimeError):  # after an illegal access, the device frees nothing
        free_memory()
    return report


def measure(
    place: Place,
    shape: str,
    name: str,
    mode: StepMode,
    sizes: Sizes,
    speeds: Speeds,
    findings: list[Finding],
    details: dict[str, Any],
) -> None:
    """Build the engine of `shape` in the mode called `name` and decode every batch; fill what is passed at once.

    Raises:
        StepsFailedError: a step failed.
    """
    free_memory()
    started = time.monotonic()
    core = BenchmarkCore(place, shape, **mode.fields(place), max_batch_size=max(sizes.batches))
    details |= {"build_s": time.monotonic() - started, "graphs": core.info.cuda_graphs}
    if mode.use_cuda_graphs and not place.is_rehearsal:
        findings.append(judge_graphs(f"{shape}, {name}: graphs at the start", core.info.cuda_graphs))
    for num_seqs in sizes.batches:
        batch = f"batch {num_seqs}"
        if place.seconds_left < BATCH_S:
            findings.append(left_out(f"{shape}, {name}, {batch}"))
        else:
            speeds[batch] = details[batch] = decode(place, core, num_seqs, sizes)
    if shape == THROUGHPUT_SHAPE and name == BEST and place.seconds_left >= WORKLOAD_S:
        details["throughput"] = measure_throughput(place, core)


def measure_throughput(place: Place, core: BenchmarkCore) -> dict[str, Any]:
    """Return how fast many requests of mixed lengths, which are all there at once, are answered."""
    num_requests, fewest, most = REHEARSED_REQUESTS if place.is_rehearsal else REQUESTS
    draw = Random(0)  # noqa: S311 - a workload, not a secret
    before = core.stats.num_generated_tokens
    started = time.perf_counter()
    for _ in range(num_requests):
        core.submit(1, draw.randint(fewest, most), max_tokens=draw.randint(fewest, most))
    core.finish()
    seconds = time.perf_counter() - started
    num_tokens = core.stats.num_generated_tokens - before
    return {"seconds": seconds, "num_tokens": num_tokens, "tokens_per_s": num_tokens / seconds}


def judge(place: Place, shape: str, best: dict[str, Any], sizes: Sizes) -> list[Finding]:
    """Return the verdicts on the goals for `shape`; `best` has what was measured in the best mode."""
    if shape == DECODE_SHAPE:
        judged = [num_seqs for num_seqs in sizes.batches if num_seqs in LEAST_BOUND_SHARES]
        return [judge_bound(place, num_seqs, best.get(f"batch {num_seqs}")) for num_seqs in judged]
    gpu = "no GPU" if place.is_rehearsal else torch.cuda.get_device_name(place.device)
    num_requests, fewest, most = REHEARSED_REQUESTS if place.is_rehearsal else REQUESTS
    what = f"{shape}, {num_requests} requests of {fewest} to {most:,} tokens in and out"
    return [judge_throughput(place, what, best.get("throughput", {}).get("tokens_per_s"), gpu=gpu)]


def judge_graphs(what: str, found: str | None) -> Finding:
    """Judge whether every graph of an engine that was asked for graphs proved itself; `found` is what it says."""
    is_used = found is not None and "not used" not in found
    return Finding(what, found or "nothing was captured", wanted="all proved", holds=is_used)


def compare(shape: str, modes: dict[str, Speeds], sizes: Sizes) -> list[Finding]:
    """Return a finding for each batch: its speed in the best mode, and what graphs and asynchronous steps are worth."""
    findings = []
    for num_seqs in sizes.batches:
        batch = f"batch {num_seqs}"
        speeds = {name: speeds[batch] for name, speeds in modes.items() if batch in speeds}
        if not speeds:
            continue  # it was left out, or its engine failed: a finding of its own
        name, shown = next(iter(speeds.items()))
        found = [f"{name} {describe(shown)}"]
        found += [
            f"{what} x {speeds[faster]['tokens_per_s'] / speeds[slower]['tokens_per_s']:.2f}"
            for what, faster, slower in COMPARED
            if faster in speeds and slower in speeds
        ]
        hosts = ", ".join(f"{name} {speed['host_ms']:.2f}" for name, speed in speeds.items())
        findings.append(Finding(f"{shape}, {batch}", "; ".join([*found, f"host ms: {hosts}"])))
    return findings
