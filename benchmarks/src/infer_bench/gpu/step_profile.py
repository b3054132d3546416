"""The profile part: the largest kernels of a decode step, and the gaps in which the GPU waits.

Of each batch, with the shape of Llama-3.2-3B and random weights, a few steps are profiled; the one of median duration
is reported. The profiler costs the host time and the device none. So a profiled step is longer, with wider gaps, than
the steps beside it, whose median is reported too; the kernels take the same time.

    step     |schedule|---------- forward ----------|--- choose ---|outputs|     marks, on the host
    device             |k|  |k||k|   |k||k||k|   |k||k| |k| |copy|               kernels, copies and fills

Steps are read from the Chrome trace that `torch.profiler` exports: a list of events, of which those with `"ph": "X"`
have a category `cat`, a `name`, a begin `ts` and a duration `dur` in microseconds, on one clock for host and device.
Work of the device has the `correlation` of the call that launched it. A mark that `record_function` makes is a
`user_annotation`; its copy on the device, a `gpu_user_annotation`, is no work.

In a rehearsal the operators on the CPU are taken for kernels; its numbers mean nothing.
"""

import json
import statistics
import tempfile
import time
from collections import defaultdict
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch.profiler import ProfilerActivity, profile, record_function

from infer_bench.gpu.benchmark_core import BenchmarkCore, StepsFailedError
from infer_bench.gpu.device_memory import free_memory
from infer_bench.gpu.parts import Finding, PartReport, Place, left_out
from infer_bench.gpu.tiny_models import tiny_shape
from infer_bench.shapes import write_config
from infer_engine.protocol import EngineConfig

SHAPE = "llama-3.2-3b"
STEP_MARK = "step"
BEGIN, END = "the step's begin", "the step's end"
GPU_WORK = frozenset({"kernel", "gpu_memcpy", "gpu_memset"})
CPU_WORK = frozenset({"cpu_op"})
_LAUNCHES = frozenset({"cuda_runtime", "cuda_driver"})
_MARKS = "user_annotation"

ENGINE_S = 12.0
"""With less time left, no engine is built: kernels may have to be compiled for it."""
BATCH_S = 6.0
"""With less time left, no batch is begun."""
_NUM_LISTED = 10
_NUM_WARM_STEPS = 8
_NUM_SKIPPED_STEPS = 3
"""The first steps under the profiler, in which it still allocates."""
_NUM_PROFILED_STEPS = 9


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """How much is computed: the batches, the tokens of their prompts, and the engine's `max_seq_len`."""

    batches: tuple[int, ...]
    context: int
    max_seq_len: int


ON_GPU = Sizes(batches=(64, 1), context=512, max_seq_len=1024)
REHEARSED = Sizes(batches=(4, 1), context=16, max_seq_len=256)


def run(place: Place) -> PartReport:
    """Profile every batch for which there is time."""
    sizes = REHEARSED if place.is_rehearsal else ON_GPU
    report = PartReport(details={"shape": SHAPE})
    if place.seconds_left < ENGINE_S:
        report.findings += [left_out(f"batch {num_seqs}") for num_seqs in sizes.batches]
        return report
    free_memory()
    with tempfile.TemporaryDirectory() as made:
        folder = write_config(tiny_shape(SHAPE) if place.is_rehearsal else SHAPE, Path(made))
        config = EngineConfig(
            model=str(folder),
            load_format="dummy",
            dtype="bfloat16",
            device=str(place.device),
            max_seq_len=sizes.max_seq_len,
            max_batch_size=max(sizes.batches),
            use_prefix_caching=False,
            use_cpu_graphs=False,
        )
        core = BenchmarkCore(config, around=record_function)
    for num_seqs in sizes.batches:
        name = f"batch {num_seqs}"
        if place.seconds_left < BATCH_S:
            report.findings.append(left_out(name))
            continue
        try:
            found = profile_batch(place, core, num_seqs, sizes)
        except StepsFailedError as error:  # the core is unusable now
            report.findings.append(Finding(name, str(error), wanted="a profile", holds=False))
            break
        report.findings += describe(name, found)
        report.details[name] = found
    return report


def profile_batch(place: Place, core: BenchmarkCore, num_seqs: int, sizes: Sizes) -> dict[str, Any]:
    """Return the profile of a decode step of `num_seqs` sequences, as `profile_of` does, and its `unprofiled_ms`."""
    core.submit(num_seqs, sizes.context, max_tokens=sizes.max_seq_len - sizes.context)
    core.prefill_all()
    times_s = [_timed_step(core) for _ in range(_NUM_WARM_STEPS)]
    activities = [ProfilerActivity.CPU, *([] if place.is_rehearsal else [ProfilerActivity.CUDA])]
    with profile(activities=activities) as profiler:
        for _ in range(_NUM_SKIPPED_STEPS + _NUM_PROFILED_STEPS):
            with record_function(STEP_MARK):
                core.decode_step()
    core.abort_all()
    with tempfile.TemporaryDirectory() as made:
        path = Path(made) / "trace.json"
        profiler.export_chrome_trace(str(path))
        trace = json.loads(path.read_text(encoding="utf-8"))
    steps = read_steps(trace, STEP_MARK, categories=CPU_WORK if place.is_rehearsal else GPU_WORK)
    step = median_step(steps[_NUM_SKIPPED_STEPS:])
    return profile_of(step) | {"unprofiled_ms": statistics.median(times_s[_NUM_WARM_STEPS // 2 :]) * 1e3}


def _timed_step(core: BenchmarkCore) -> float:
    started = time.perf_counter()
    core.decode_step()
    return time.perf_counter() - started


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """An event of the trace: work of the device, or a call or a mark on the host.

    Attributes:
        name: of the kernel, the operator, the driver's call or the mark.
        start_us: when it began.
        end_us: when it ended.
        launched_us: when the host launched it; None for events of the host, and if it is not known.
        is_mark: whether it is a mark of the program; inside a mark, Python runs between the calls.
    """

    name: str
    start_us: float
    end_us: float
    launched_us: float | None = None
    is_mark: bool = False

    @property
    def called_us(self) -> float:
        """When it was launched, or else when it began."""
        return self.start_us if self.launched_us is None else self.launched_us

    def covers(self, time_us: float) -> bool:
        """Return whether the event was under way at `time_us`."""
        return self.start_us <= time_us <= self.end_us


@dataclass(frozen=True, slots=True, kw_only=True)
class TracedStep:
    """A marked step: its own event, the device's work for it, and what the host did in it."""

    mark: Event
    work: list[Event]
    calls: list[Event]

    @property
    def duration_us(self) -> float:
        """Of the whole step."""
        return self.mark.end_us - self.mark.start_us


def read_steps(trace: dict[str, Any], mark: str, *, categories: Collection[str] = GPU_WORK) -> list[TracedStep]:
    """Return the steps of a decoded `trace` that have the `mark`, in order.

    A step waits for everything that it launched, so its work lies inside it. Its work is what it launched; if the
    launch is not known, what began during the step. `categories` are those of the device's work.
    """
    events = [event for event in trace["traceEvents"] if event.get("ph") == "X" and "dur" in event]
    launched_us = {
        event["args"]["correlation"]: float(event["ts"])
        for event in events
        if event.get("cat") in _LAUNCHES and "correlation" in event.get("args", {})
    }
    by_category = defaultdict(list)
    for event in events:
        start_us, category = float(event["ts"]), event.get("cat")
        by_category[category].append(
            Event(
                name=event["name"],
                start_us=start_us,
                end_us=start_us + float(event["dur"]),
                launched_us=launched_us.get(event.get("args", {}).get("correlation")),
                is_mark=category == _MARKS,
            )
        )
    work = [event for category in categories for event in by_category[category]]
    calls = [event for category in (*CPU_WORK, *_LAUNCHES, _MARKS) for event in by_category[category]]
    marks = sorted((call for call in calls if call.is_mark and call.name == mark), key=lambda call: call.start_us)
    return [
        TracedStep(
            mark=step,
            work=[each for each in work if step.covers(each.called_us)],
            calls=[call for call in calls if step.covers(call.start_us)],
        )
        for step in marks
    ]


def median_step(steps: Sequence[TracedStep]) -> TracedStep:
    """Return the step of median duration; the shorter one of two.

    Raises:
        ValueError: there is none.
    """
    if not steps:
        raise ValueError(f"The trace has no step: no event is marked `{STEP_MARK}`.")
    return sorted(steps, key=lambda step: step.duration_us)[(len(steps) - 1) // 2]


def profile_of(step: TracedStep) -> dict[str, Any]:
    """Return how `step` spent its time: its largest kernels by name, and its longest gaps."""
    gaps = find_gaps(step)
    idle_us = sum(gap["us"] for gap in gaps)
    return {
        "step_us": step.duration_us,
        "busy_us": step.duration_us - idle_us,
        "busy_share": 1 - idle_us / step.duration_us,
        "num_launches": len(step.work),
        "kernels": total_by_name(step)[:_NUM_LISTED],
        "gaps": gaps[:_NUM_LISTED],
    }


def total_by_name(step: TracedStep) -> list[dict[str, Any]]:
    """Return the calls and the time of each kernel, and its share of the step; the largest comes first."""
    durations_us = defaultdict(list)
    for work in step.work:
        durations_us[work.name].append(work.end_us - work.start_us)
    totals = [
        {"name": name, "calls": len(each), "total_us": sum(each), "share": sum(each) / step.duration_us}
        for name, each in durations_us.items()
    ]
    return sorted(totals, key=lambda total: -total["total_us"])


def find_gaps(step: TracedStep) -> list[dict[str, Any]]:
    """Return when the device did nothing, the longest first: how long, after and before what, and why.

    stream 7    |kernel a |        |kernel c       |
    stream 9         |kernel b|         |kernel d|        |kernel e|
    gaps                      |b..c|               |c..e  |        |...
    """
    gaps: list[dict[str, Any]] = []
    idle_since_us, after = step.mark.start_us, BEGIN
    end = Event(name=END, start_us=step.mark.end_us, end_us=step.mark.end_us)
    for work in [*sorted(step.work, key=lambda each: each.start_us), end]:
        if work.start_us > idle_since_us:
            why = explain_gap(idle_since_us, work, step.calls)
            gaps.append({"us": work.start_us - idle_since_us, "after": after, "before": work.name, "host": why})
        if work.end_us > idle_since_us:
            idle_since_us, after = work.end_us, work.name
    return sorted(gaps, key=lambda gap: -gap["us"])


def explain_gap(start_us: float, following: Event, calls: Iterable[Event]) -> str:
    """Return what the host did in the gap from `start_us` to `following`, if the device waited for the host.

    The device waited for itself if `following` was launched before the gap began. Otherwise the answer is the innermost
    of `calls` that was under way in the middle between the begin of the gap and the launch.
    """
    launched_us = following.called_us
    if launched_us <= start_us:
        return f"the device's own: launched {start_us - launched_us:.0f} us before"
    under_way = [call for call in calls if call.covers((start_us + launched_us) / 2)]
    if not under_way:
        return "not known"
    innermost = min(under_way, key=lambda call: call.end_us - call.start_us)
    return f"Python in `{innermost.name}`" if innermost.is_mark else innermost.name


def describe(what: str, found: dict[str, Any]) -> list[Finding]:
    """Return the findings for `what`, whose profile is `found`."""
    if not found["num_launches"]:
        return [Finding(what, "the profiler saw no kernel", wanted="kernels", holds=False)]
    kernel, gap = found["kernels"][0], found["gaps"][0]
    return [
        Finding(
            what,
            f"step {found['step_us'] / 1e3:.2f} ms ({found['unprofiled_ms']:.2f} without the profiler), device busy "
            f"{found['busy_share']:.0%}, {found['num_launches']} launches",
        ),
        Finding(
            f"{what}, largest kernel",
            f"{_short(kernel['name'])}: {kernel['calls']} calls, {kernel['total_us']:.0f} us, "
            f"{kernel['share']:.0%} of the step",
        ),
        Finding(
            f"{what}, longest gap",
            f"{gap['us']:.0f} us between {_short(gap['after'])} and {_short(gap['before'])}; host: "
            f"{_short(gap['host'])}",
        ),
    ]


def _short(name: str, length: int = 48) -> str:
    return name if len(name) <= length else f"{name[: length - 3]}..."
