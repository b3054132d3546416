"""Part 6: a decode step under the profiler: its largest kernels, and the gaps in which the GPU waits. Knows no server.

Of each batch of Llama-3.2-3B's shape, with random weights, a few steps are profiled, of which the one of median
duration is reported. The profiler records every operator and launch, which costs the host time and the device none: a
profiled step is longer, and its gaps are wider, than the steps beside it that are not profiled, whose median is
reported too. Their kernels take the same time.

    step     |schedule|---------- forward ----------|--- choose ---|outputs|     marks, on the host
    device             |k|  |k||k|   |k||k||k|   |k||k| |k| |copy|               kernels, copies and fills

On a CPU operators take the kernels' part, so that everything runs; its numbers say nothing.
"""

import json
import statistics
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from torch.profiler import ProfilerActivity, profile, record_function

from gpu.chrome_trace import CPU_WORK, GPU_WORK, TracedStep, read_steps
from gpu.device_memory import free_unreferenced
from gpu.parts import Finding, PartReport, Place
from gpu.stepped_core import SteppedCore, StepsFailedError, write_folder
from gpu.timeline import busy_us, explain_gap, find_gaps, total_by_name
from infer_engine.core.request import Request
from infer_engine.core.step_executor import ComputedPass, StepRunner
from infer_engine.protocol import EngineConfig
from infer_engine.sampling.sampler_output import SamplerOutput
from infer_engine.scheduling import Schedule

SHAPE = "llama-3.2-3b"
STEP_MARK = "step"
ENGINE_S = 12.0
"""With less time left than this, no engine is built: kernels may have to be compiled for it."""
BATCH_S = 6.0
"""With less time left than this, no further batch is begun."""
_NUM_LISTED = 10
_NUM_WARM_STEPS = 8
_NUM_UNTOLD_STEPS = 3
"""The first steps under the profiler, in which it is still making room."""
_NUM_TOLD_STEPS = 9


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """How much is computed.

    Attributes:
        batches: sequences of each batch.
        context: tokens of each of their prompts.
        max_seq_len: the engine's.
    """

    batches: tuple[int, ...]
    context: int
    max_seq_len: int


ON_GPU = Sizes(batches=(64, 1), context=512, max_seq_len=1024)
REHEARSED = Sizes(batches=(4, 1), context=16, max_seq_len=256)


@dataclass(frozen=True, slots=True, kw_only=True)
class StepProfile:
    """What a step spent its time on.

    Attributes:
        step_us: of the whole step, profiled.
        busy_us: in which the device was busy, on any stream.
        num_launches: kernels, copies and fills.
        kernels: the largest by name, each with `name`, `calls`, `total_us` and `share` of the step.
        gaps: the longest, each with `us`, `after`, `before` and what the `host` did meanwhile.
    """

    step_us: float
    busy_us: float
    num_launches: int
    kernels: list[dict[str, Any]]
    gaps: list[dict[str, Any]]

    @property
    def busy_share(self) -> float:
        """Of the step."""
        return self.busy_us / self.step_us

    @classmethod
    def of(cls, step: TracedStep) -> "StepProfile":
        """Return what `step` spent its time on."""
        totals = total_by_name(step.work)[:_NUM_LISTED]
        gaps = find_gaps(step.work, start_us=step.start_us, end_us=step.end_us)[:_NUM_LISTED]
        return cls(
            step_us=step.duration_us,
            busy_us=busy_us(step.work),
            num_launches=len(step.work),
            kernels=[
                {
                    "name": each.name,
                    "calls": each.num_calls,
                    "total_us": each.total_us,
                    "share": each.total_us / step.duration_us,
                }
                for each in totals
            ],
            gaps=[
                {
                    "us": gap.duration_us,
                    "after": gap.after,
                    "before": gap.before,
                    "host": explain_gap(gap, step.calls),
                }
                for gap in gaps
            ],
        )

    def findings(self, what: str, *, unprofiled_ms: float) -> list[Finding]:
        """Return lines about `what`, whose steps take `unprofiled_ms` without the profiler."""
        if not self.num_launches:
            return [Finding(what=what, found="the profiler saw no kernel", wanted="kernels", holds=False)]
        kernel, gap = self.kernels[0], self.gaps[0]
        return [
            Finding(
                what=what,
                found=f"step {self.step_us / 1e3:.2f} ms ({unprofiled_ms:.2f} without the profiler), device busy "
                f"{self.busy_share:.0%}, {self.num_launches} launches",
            ),
            Finding(
                what=f"{what}, largest kernel",
                found=f"{_short(kernel['name'])}: {kernel['calls']} calls, {kernel['total_us']:.0f} us, "
                f"{kernel['share']:.0%} of the step",
            ),
            Finding(
                what=f"{what}, longest gap",
                found=f"{gap['us']:.0f} us between {_short(gap['after'])} and {_short(gap['before'])}; host: "
                f"{_short(gap['host'])}",
            ),
        ]


def run(place: Place) -> PartReport:
    """Profile every batch for which there is time."""
    sizes = REHEARSED if place.is_rehearsal else ON_GPU
    report = PartReport(details={"shape": SHAPE})
    if place.seconds_left < ENGINE_S:
        report.findings += map(_left_out, sizes.batches)
        return report
    free_unreferenced()
    with tempfile.TemporaryDirectory() as made:
        folder = write_folder(SHAPE, Path(made), is_tiny=place.is_rehearsal)
        core = SteppedCore(_config(place, sizes, folder), around_runner=MarkedRunner)
    for num_seqs in sizes.batches:
        if place.seconds_left < BATCH_S:
            report.findings.append(_left_out(num_seqs))
            continue
        started = time.monotonic()
        try:
            found, unprofiled_ms = _profile_batch(place, core, num_seqs, sizes)
        except StepsFailedError as error:  # the core is of no use any more
            report.findings.append(Finding(what=_named(num_seqs), found=str(error), wanted="a profile", holds=False))
            break
        report.findings += found.findings(_named(num_seqs), unprofiled_ms=unprofiled_ms)
        report.details[f"batch {num_seqs}"] = asdict(found) | {
            "busy_share": found.busy_share,
            "unprofiled_ms": unprofiled_ms,
            "took_s": time.monotonic() - started,
        }
    del core
    free_unreferenced()
    return report


def median_step(steps: Sequence[TracedStep]) -> TracedStep:
    """Return the step of median duration; of two, the shorter one.

    Raises:
        ValueError: there is none.
    """
    if not steps:
        raise ValueError(f"The trace has no step: no event is marked `{STEP_MARK}`.")
    return sorted(steps, key=lambda step: step.duration_us)[(len(steps) - 1) // 2]


class MarkedRunner:
    """Computes as `inner` does, each part marked for the profiler. A `StepRunner`."""

    def __init__(self, inner: StepRunner) -> None:
        """Mark what `inner` does."""
        self._inner = inner

    def forward(self, schedule: Schedule) -> ComputedPass:
        """Compute the pass."""
        with record_function("forward"):
            return self._inner.forward(schedule)

    def sample(self, logits: Any, requests: list[Request]) -> SamplerOutput:
        """Choose as `inner` does."""
        with record_function("choose"):
            return self._inner.sample(logits, requests)

    def probe(self) -> None:
        """Probe `inner`."""
        self._inner.probe()


def _named(num_seqs: int) -> str:
    return f"batch {num_seqs}"


def _left_out(num_seqs: int) -> Finding:
    return Finding(what=_named(num_seqs), found="left out: no time", holds=False)


def _config(place: Place, sizes: Sizes, folder: Path) -> EngineConfig:
    return EngineConfig(
        model=str(folder),
        load_format="dummy",
        dtype="bfloat16",
        device=str(place.device),
        max_seq_len=sizes.max_seq_len,
        max_batch_size=max(sizes.batches),
        use_prefix_caching=False,
        use_cpu_graphs=False,
    )


def _profile_batch(place: Place, core: SteppedCore, num_seqs: int, sizes: Sizes) -> tuple[StepProfile, float]:
    """Return the profile of a decode step of `num_seqs` sequences, and the milliseconds of one that is not profiled."""
    core.submit(num_seqs, sizes.context, max_tokens=sizes.max_seq_len - sizes.context)
    core.prefill_all()
    times_s = [_timed_step(core) for _ in range(_NUM_WARM_STEPS)]
    activities = [ProfilerActivity.CPU, *([] if place.is_rehearsal else [ProfilerActivity.CUDA])]
    with profile(activities=activities) as profiler:
        for _ in range(_NUM_UNTOLD_STEPS + _NUM_TOLD_STEPS):
            with record_function(STEP_MARK):
                core.decode_step()
    core.abort_all()
    with tempfile.TemporaryDirectory() as made:
        path = Path(made) / "trace.json"
        profiler.export_chrome_trace(str(path))
        trace = json.loads(path.read_text(encoding="utf-8"))
    steps = read_steps(trace, STEP_MARK, categories=CPU_WORK if place.is_rehearsal else GPU_WORK)
    found = StepProfile.of(median_step(steps[_NUM_UNTOLD_STEPS:]))
    return found, statistics.median(times_s[_NUM_WARM_STEPS // 2 :]) * 1e3


def _timed_step(core: SteppedCore) -> float:
    started = time.perf_counter()
    core.decode_step()
    return time.perf_counter() - started


def _short(name: str, length: int = 48) -> str:
    return name if len(name) <= length else f"{name[: length - 3]}..."
