"""The profile part: the largest kernels of a decode step, and the gaps in which the GPU waits.

Of each batch, with the shape of Llama-3.2-3B and random weights, one step is profiled. The profiler costs the host time
and the device none: that step is longer, with wider gaps, than the steps before it, but its kernels take the same time.
So the device's busy time is compared with the median of those other steps.

The step is read from the Chrome trace that `torch.profiler` exports: a list of events, of which those with `"ph": "X"`
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

from infer_bench.gpu.benchmark_core import BenchmarkCore, StepsFailedError
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


def run(place: Place) -> PartReport:
    """Profile every batch for which there is time."""
    batches, context, max_seq_len = ((4, 1), 16, 256) if place.is_rehearsal else ((64, 8, 1), 512, 1024)
    report = PartReport(details={"shape": SHAPE})
    core = BenchmarkCore(place, SHAPE, max_batch_size=max(batches), max_seq_len=max_seq_len)
    for num_seqs in batches:
        name = f"batch {num_seqs}"
        if place.seconds_left < BATCH_S:
            report.findings.append(left_out(name))
            continue
        try:
            core.submit(num_seqs, context, max_tokens=max_seq_len - context)
            found = report.details[name] = profile_decode(place, core)
        except StepsFailedError as error:  # the core is unusable now
            report.findings.append(failed(name, error))
            break
        report.findings += describe(name, found)
    return report


def profile_decode(place: Place, core: BenchmarkCore) -> dict[str, Any]:
    """Return the profile of a decode step of all requests, as `profile_of` does, and abort them."""
    core.prefill_all()
    seconds = []
    for _ in range(_NUM_WARM_STEPS + _NUM_TIMED_STEPS):
        started = time.perf_counter()
        core.decode_step()
        seconds.append(time.perf_counter() - started)
    activities = [ProfilerActivity.CPU, *([] if place.is_rehearsal else [ProfilerActivity.CUDA])]
    plan = schedule(wait=0, warmup=_NUM_SKIPPED_STEPS, active=1, repeat=1)
    with profile(activities=activities, schedule=plan) as profiler:
        for _ in range(_NUM_SKIPPED_STEPS + 1):
            core.decode_step()
            profiler.step()
    core.abort_all()
    with tempfile.TemporaryDirectory() as made:
        path = Path(made) / "trace.json"
        profiler.export_chrome_trace(str(path))
        trace = json.loads(path.read_text(encoding="utf-8"))
    step, work = read_step(trace, categories=CPU_WORK if place.is_rehearsal else GPU_WORK)
    return profile_of(step, work, unprofiled_us=statistics.median(seconds[_NUM_WARM_STEPS:]) * 1e6)


class Event(NamedTuple):
    """Work of the device, or a step: its name, and when it began and ended."""

    name: str
    start_us: float
    end_us: float


def read_step(trace: dict[str, Any], *, categories: Collection[str]) -> tuple[Event, list[Event]]:
    """Return the step in a decoded `trace`, and the device's work in it, of these `categories`."""
    events = defaultdict(list)
    for each in trace["traceEvents"]:
        if each.get("ph") == "X":
            event = Event(each["name"], float(each["ts"]), float(each["ts"]) + float(each["dur"]))
            events[each.get("cat")].append(event)
    (step,) = (event for event in events["user_annotation"] if event.name.startswith(STEP_MARK))
    return step, [event for category in categories for event in events[category]]


def profile_of(step: Event, work: Sequence[Event], *, unprofiled_us: float) -> dict[str, Any]:
    """Return how `step` spent its time: its largest kernels by name, and its longest gaps.

    `busy_share` is the device's busy time as a share of `unprofiled_us`, the time of a step without the profiler.
    """
    durations_us = defaultdict(list)
    for each in work:
        durations_us[each.name].append(each.end_us - each.start_us)
    kernels: list[dict[str, Any]] = [
        {"name": name, "calls": len(each), "us": sum(each)} for name, each in durations_us.items()
    ]
    gaps = find_gaps(step, work)
    profiled_us = step.end_us - step.start_us
    busy_us = profiled_us - sum(gap["us"] for gap in gaps)
    return {
        "unprofiled_us": unprofiled_us,
        "profiled_us": profiled_us,
        "busy_us": busy_us,
        "busy_share": busy_us / unprofiled_us,
        "num_launches": len(work),
        "kernels": sorted(kernels, key=lambda kernel: -kernel["us"])[:_NUM_LISTED],
        "gaps": gaps[:_NUM_LISTED],
    }


def find_gaps(step: Event, work: Sequence[Event]) -> list[dict[str, Any]]:
    """Return when the device did nothing, the longest first: how long, after and before what.

    stream 7    |kernel a |        |kernel c       |
    stream 9         |kernel b|         |kernel d|        |kernel e|
    gaps                      |b..c|               |c..e  |        |...
    """
    gaps: list[dict[str, Any]] = []
    idle_since_us, after = step.start_us, "the step's begin"
    end = Event("the step's end", step.end_us, step.end_us)
    for each in [*sorted(work, key=lambda each: each.start_us), end]:
        if each.start_us > idle_since_us:
            gaps.append({"us": each.start_us - idle_since_us, "after": after, "before": each.name})
        if each.end_us > idle_since_us:
            idle_since_us, after = each.end_us, each.name
    return sorted(gaps, key=lambda gap: -gap["us"])


def describe(what: str, found: dict[str, Any]) -> list[Finding]:
    """Return the findings for `what`, whose profile is `found`."""
    if not found["num_launches"]:
        return [Finding(what, "the profiler saw no kernel", wanted="kernels", holds=False)]
    step = f"step {found['unprofiled_us'] / 1e3:.2f} ms, device busy {found['busy_share']:.0%}"
    kernel, gap = found["kernels"][0], found["gaps"][0]
    return [
        Finding(what, f"{step}, {found['num_launches']} launches"),
        Finding(f"{what}, largest kernel", f"{kernel['name']:.48}: {kernel['calls']} calls, {kernel['us']:.0f} us"),
        Finding(f"{what}, longest gap", f"{gap['us']:.0f} us between {gap['after']:.48} and {gap['before']:.48}"),
    ]
