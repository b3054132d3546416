"""The profile part: the largest kernels of a decode step, and the gaps in which the GPU waits.

Of each batch, with the shape of Llama-3.2-3B, random weights, CUDA graphs and asynchronous scheduling, some steps in
succession are profiled. The profiler costs the host time and the device none: those steps are longer, with wider gaps,
than the steps before them, but their kernels take the same time. So the device's busy time is compared with the median
of those other steps. With asynchronous scheduling the device computes one step while the host plans the next, so a
single step's kernels are not those between its begin and its end; over several steps the sum is that of as many.

Steps are read from the Chrome trace that `torch.profiler` exports: a list of events, of which those with `"ph": "X"`
have a category `cat`, a `name`, a begin `ts` and a duration `dur` in microseconds, on one clock for host and device.
In a rehearsal the operators on the CPU are taken for kernels; its numbers mean nothing.
"""

import json
import statistics
import tempfile
import time
from collections import defaultdict
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from torch.profiler import ProfilerActivity, profile, schedule

from infer_bench.gpu.benchmark_core import BenchmarkCore, StepMode, StepsFailedError
from infer_bench.gpu.engine_speed import costs_of
from infer_bench.gpu.goals import judge_idle
from infer_bench.gpu.kernel_rates import StepBytes, describe_kernel, step_bytes, with_bytes
from infer_bench.gpu.parts import Finding, PartReport, Place, failed, left_out

SHAPE = "llama-3.2-3b"
STEP_MARK = "ProfilerStep#"
"""The profiler marks steps by this and a number; the category is `user_annotation`."""
GPU_WORK = frozenset({"kernel", "gpu_memcpy", "gpu_memset"})
CPU_WORK = frozenset({"cpu_op"})
BATCH_S = 6.0
"""With less time left, no batch is begun."""
_NUM_LISTED = 10
_NUM_WARM_STEPS, _NUM_TIMED_STEPS = 4, 8
_NUM_SKIPPED_STEPS = 3
"""The first steps under the profiler, in which it still allocates."""
_NUM_PROFILED_STEPS = 8


def run(place: Place) -> PartReport:
    """Profile every batch for which there is time."""
    batches, context, max_seq_len = ((4, 1), 16, 256) if place.is_rehearsal else ((64, 8, 1), 512, 1024)
    report = PartReport(details={"shape": SHAPE})
    mode = StepMode(use_cuda_graphs=True, use_async_scheduling=True)
    core = BenchmarkCore(place, SHAPE, **mode.fields(place), max_batch_size=max(batches), max_seq_len=max_seq_len)
    for num_seqs in batches:
        name = f"batch {num_seqs}"
        if place.seconds_left < BATCH_S:
            report.findings.append(left_out(name))
            continue
        try:
            core.submit(num_seqs, context, max_tokens=max_seq_len - context)
            found = report.details[name] = profile_decode(place, core, num_seqs, context)
        except StepsFailedError as error:  # the core is unusable now
            report.findings.append(failed(name, error))
            break
        report.findings += describe(place, name, found)
    alone = report.details.get("batch 1")
    report.findings.append(judge_idle(place, alone and alone["busy_share"]))
    return report


def profile_decode(place: Place, core: BenchmarkCore, num_seqs: int, num_prompt_tokens: int) -> dict[str, Any]:
    """Return the profile of decode steps of all requests, as `profile_of` does with bytes, and abort them.

    Args:
        place: where they are computed.
        core: has the requests.
        num_seqs: how many there are.
        num_prompt_tokens: of each.
    """
    generated_before = core.stats.num_generated_tokens
    core.prefill_all()
    seconds = []
    for _ in range(_NUM_WARM_STEPS + _NUM_TIMED_STEPS):
        started = time.perf_counter()
        core.decode_step()
        seconds.append(time.perf_counter() - started)
    activities = [ProfilerActivity.CPU, *([] if place.is_rehearsal else [ProfilerActivity.CUDA])]
    plan = schedule(wait=0, warmup=_NUM_SKIPPED_STEPS, active=_NUM_PROFILED_STEPS, repeat=1)
    with profile(activities=activities, schedule=plan) as profiler:
        for _ in range(_NUM_SKIPPED_STEPS + _NUM_PROFILED_STEPS):
            core.decode_step()
            profiler.step()
    num_generated = (core.stats.num_generated_tokens - generated_before) / num_seqs
    core.abort_all()
    with tempfile.TemporaryDirectory() as made:
        path = Path(made) / "trace.json"
        profiler.export_chrome_trace(str(path))
        trace = json.loads(path.read_text(encoding="utf-8"))
    steps, work = read_steps(trace, categories=CPU_WORK if place.is_rehearsal else GPU_WORK)
    context = round(num_prompt_tokens + num_generated - _NUM_PROFILED_STEPS / 2)
    return profile_of(
        steps,
        work,
        unprofiled_us=statistics.median(seconds[_NUM_WARM_STEPS:]) * 1e6,
        known=step_bytes(costs_of(core), num_seqs, context),
    )


class Event(NamedTuple):
    """Work of the device, or a step: its name, and when it began and ended."""

    name: str
    start_us: float
    end_us: float


def read_steps(trace: dict[str, Any], *, categories: Collection[str]) -> tuple[list[Event], list[Event]]:
    """Return the steps in a decoded `trace`, in their order, and the device's work, of these `categories`."""
    events = defaultdict(list)
    for each in trace["traceEvents"]:
        if each.get("ph") == "X":
            event = Event(each["name"], float(each["ts"]), float(each["ts"]) + float(each["dur"]))
            events[each.get("cat")].append(event)
    steps = [event for event in events["user_annotation"] if event.name.startswith(STEP_MARK)]
    work = [event for category in categories for event in events[category]]
    return sorted(steps, key=lambda step: step.start_us), work


def profile_of(
    steps: Sequence[Event], work: Sequence[Event], *, unprofiled_us: float, known: StepBytes | None = None
) -> dict[str, Any]:
    """Return how one of `steps` spent its time: its largest kernels by name, and the longest gaps in any of them.

    Times and counts are those between the first step's begin and the last one's end, divided by the number of steps.
    `busy_share` is the device's busy time as a share of `unprofiled_us`, the time of a step without the profiler.
    `known` are the bytes of a step, of which the kernels that read them get theirs.
    """
    window = Event("steps", steps[0].start_us, steps[-1].end_us)
    inside = [
        Event(each.name, max(each.start_us, window.start_us), min(each.end_us, window.end_us))
        for each in work
        if each.start_us < window.end_us and each.end_us > window.start_us
    ]
    durations_us = defaultdict(list)
    for each in inside:
        durations_us[each.name].append(each.end_us - each.start_us)
    kernels: list[dict[str, Any]] = [
        {"name": name, "calls": len(each) / len(steps), "us": sum(each) / len(steps)}
        for name, each in durations_us.items()
    ]
    if known is not None:
        kernels = with_bytes(kernels, known)
    gaps = find_gaps(window, inside)
    window_us = window.end_us - window.start_us
    busy_us = (window_us - sum(gap["us"] for gap in gaps)) / len(steps)
    return {
        "unprofiled_us": unprofiled_us,
        "profiled_us": window_us / len(steps),
        "busy_us": busy_us,
        "busy_share": busy_us / unprofiled_us,
        "num_launches": len(inside) / len(steps),
        "kernels": sorted(kernels, key=lambda kernel: -kernel["us"])[:_NUM_LISTED],
        "gaps": gaps[:_NUM_LISTED],
    }


def find_gaps(window: Event, work: Sequence[Event]) -> list[dict[str, Any]]:
    """Return when the device did nothing in `window`, the longest first: how long, after and before what.

    stream 7    |kernel a |        |kernel c       |
    stream 9         |kernel b|         |kernel d|        |kernel e|
    gaps                      |b..c|               |c..e  |        |...
    """
    gaps: list[dict[str, Any]] = []
    idle_since_us, after = window.start_us, "the first step's begin"
    end = Event("the last step's end", window.end_us, window.end_us)
    for each in [*sorted(work, key=lambda each: each.start_us), end]:
        if each.start_us > idle_since_us:
            gaps.append({"us": each.start_us - idle_since_us, "after": after, "before": each.name})
        if each.end_us > idle_since_us:
            idle_since_us, after = each.end_us, each.name
    return sorted(gaps, key=lambda gap: -gap["us"])


def describe(place: Place, what: str, found: dict[str, Any]) -> list[Finding]:
    """Return the findings for `what`, whose profile is `found`: the step, its largest kernels, its longest gap."""
    if not found["num_launches"]:
        return [Finding(what, "the profiler saw no kernel", wanted="kernels", holds=False)]
    step = f"step {found['unprofiled_us'] / 1e3:.2f} ms, device busy {found['busy_share']:.0%}"
    gap = found["gaps"][0]
    return [
        Finding(what, f"{step}, {found['num_launches']:.0f} kernels and copies"),
        *(Finding(f"{what}, {each['name']:.48}", describe_kernel(place, each)) for each in found["kernels"]),
        Finding(f"{what}, longest gap", f"{gap['us']:.0f} us between {gap['after']:.48} and {gap['before']:.48}"),
    ]
