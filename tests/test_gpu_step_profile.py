"""The profile of a step: busy time, gaps and kernels of overlapping streams, and how they are read from a trace."""

import json
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "benchmarks"))

from gpu import step_profile
from gpu.chrome_trace import CPU_WORK, TracedStep, read_steps
from gpu.parts import Place
from gpu.step_profile import StepProfile, median_step
from gpu.stepped_core import StepsFailedError
from gpu.timeline import BEGIN, END, Gap, HostCall, Interval, busy_us, explain_gap, find_gaps, merge, total_by_name


def interval(name: str, start_us: float, duration_us: float, *, stream: int = 7) -> Interval:
    return Interval(name=name, start_us=start_us, duration_us=duration_us, stream=stream)


def traced(duration_us: float, *work: Interval, calls: tuple[HostCall, ...] = ()) -> TracedStep:
    return TracedStep(start_us=0.0, end_us=duration_us, work=list(work), calls=list(calls))


OVERLAPPING = [
    interval("long", 10, 50),
    interval("short", 20, 5, stream=9),  # within it
    interval("late", 55, 25, stream=9),  # across its end
    interval("touching", 80, 10),
    interval("last", 100, 1),
]


# The timeline


def test_kernels_that_overlap_or_touch_are_one_stretch() -> None:
    first, second = merge(OVERLAPPING)
    assert (first.start_us, first.end_us, first.first.name, first.last.name) == (10, 90, "long", "touching")
    assert (second.start_us, second.end_us) == (100, 101)
    assert busy_us(OVERLAPPING) == 81


def test_a_kernel_within_another_does_not_end_their_stretch() -> None:
    (stretch,) = merge(OVERLAPPING[:2])
    assert (stretch.end_us, stretch.last.name) == (60, "long")


def test_gaps_are_named_after_their_neighbours_and_the_longest_comes_first() -> None:
    gaps = find_gaps(OVERLAPPING, start_us=0, end_us=106)
    assert [(gap.after, gap.before, gap.duration_us) for gap in gaps] == [
        (BEGIN, "long", 10),
        ("touching", "last", 10),
        ("last", END, 5),
    ]


def test_a_step_without_kernels_is_one_gap() -> None:
    (gap,) = find_gaps([], start_us=3, end_us=7)
    assert (gap.after, gap.before, gap.duration_us) == (BEGIN, END, 4)


@given(st.lists(st.tuples(st.integers(0, 100), st.integers(0, 30), st.integers(0, 3)), max_size=20))
def test_busy_time_and_gaps_are_the_whole_step(drawn: list[tuple[int, int, int]]) -> None:
    work = [interval("k", start, duration, stream=stream) for start, duration, stream in drawn]
    gaps = find_gaps(work, start_us=0, end_us=200)
    assert busy_us(work) + sum(gap.duration_us for gap in gaps) == 200
    busy = {moment for each in work for moment in range(int(each.start_us), int(each.end_us))}
    assert busy_us(work) == len(busy)


def test_kernels_of_one_name_are_added_up() -> None:
    totals = total_by_name([interval("a", 0, 1), interval("b", 1, 5), interval("a", 6, 2)])
    assert [(total.name, total.num_calls, total.total_us) for total in totals] == [("b", 1, 5), ("a", 2, 3)]


CALLS = [
    HostCall(name="step", start_us=0, duration_us=100, is_mark=True),
    HostCall(name="forward", start_us=10, duration_us=60, is_mark=True),
    HostCall(name="aten::linear", start_us=20, duration_us=10),
    HostCall(name="cudaLaunchKernel", start_us=26, duration_us=3),
]


@pytest.mark.parametrize(
    ("start_us", "launched_us", "told"),
    [
        (20, 24, "aten::linear"),
        (26, 28, "cudaLaunchKernel"),
        (40, 60, "Python in `forward`"),
        (80, 90, "Python in `step`"),
        (50, 20, "the device's own: launched 30 us before"),
        (200, 210, "not known"),
    ],
)
def test_a_gap_is_explained_by_what_the_host_did_before_the_launch(
    start_us: float, launched_us: float, told: str
) -> None:
    gap = Gap(start_us=start_us, duration_us=45, after="a", before="b", next_launched_us=launched_us)
    assert explain_gap(gap, CALLS) == told


def test_a_gap_at_the_steps_end_is_explained_by_its_middle() -> None:
    assert explain_gap(Gap(start_us=60, duration_us=40, after="a", before=END), CALLS) == "Python in `step`"


# The trace


def event(cat: str, name: str, ts: float, dur: float, **args: int) -> dict[str, Any]:
    return {"ph": "X", "cat": cat, "name": name, "pid": 0, "tid": 7, "ts": ts, "dur": dur, "args": args}


TRACE: dict[str, Any] = {
    "schemaVersion": 1,
    "traceEvents": [
        {"ph": "M", "name": "process_name", "ts": 0, "pid": 0, "tid": 0, "args": {"name": "python"}},
        {"ph": "s", "id": 11, "cat": "ac2g", "name": "ac2g", "pid": 0, "tid": 7, "ts": 1010.0},
        event("user_annotation", "step", 2000.0, 100.0),
        event("user_annotation", "step", 1000.0, 100.0),
        event("user_annotation", "forward", 1005.0, 50.0),
        event("cpu_op", "aten::mm", 1008.0, 6.0),
        event("cuda_runtime", "cudaLaunchKernel", 1010.0, 3.0, correlation=11),
        event("cuda_driver", "cuLaunchKernelEx", 1020.0, 3.0, correlation=12),
        event("cuda_runtime", "cudaMemcpyAsync", 1060.0, 30.0, correlation=13),
        event("cuda_driver", "cuLaunchKernelEx", 2010.0, 3.0, correlation=14),
        event("gpu_user_annotation", "step", 1015.0, 80.0, stream=7),
        event("kernel", "gemm", 1015.0, 20.0, stream=7, correlation=11),
        event("kernel", "_attention", 1030.0, 30.0, stream=9, correlation=12),
        event("gpu_memcpy", "Memcpy DtoH", 1070.0, 2.0, stream=7, correlation=13),
        event("kernel", "early", 1999.0, 5.0, stream=7, correlation=14),  # clocks differ by a little
        event("kernel", "unlaunched", 2050.0, 5.0, stream=7),
        event("kernel", "between steps", 1500.0, 5.0, stream=7),
    ],
}


def test_a_trace_is_split_into_its_marked_steps_in_order() -> None:
    first, second = read_steps(TRACE, "step")
    assert (first.start_us, first.end_us, second.start_us) == (1000.0, 1100.0, 2000.0)


def test_a_steps_work_is_what_it_launched_or_else_what_began_in_it() -> None:
    first, second = read_steps(TRACE, "step")
    assert [(work.name, work.stream, work.launched_us) for work in first.work] == [
        ("gemm", 7, 1010.0),
        ("_attention", 9, 1020.0),
        ("Memcpy DtoH", 7, 1060.0),
    ]
    assert [(work.name, work.launched_us) for work in second.work] == [("early", 2010.0), ("unlaunched", None)]


def test_a_steps_calls_are_operators_driver_calls_and_marks() -> None:
    first, _ = read_steps(TRACE, "step")
    assert {call.name for call in first.calls if call.is_mark} == {"step", "forward"}
    assert {call.name for call in first.calls if not call.is_mark} == {
        "aten::mm",
        "cudaLaunchKernel",
        "cuLaunchKernelEx",
        "cudaMemcpyAsync",
    }


def test_a_profile_of_the_trace_tells_kernels_gaps_and_their_reasons() -> None:
    found = StepProfile.of(read_steps(TRACE, "step")[0])
    assert found.busy_us == 45.0 + 2.0  # two kernels overlap by 5
    assert found.busy_share == pytest.approx(0.47)
    assert found.num_launches == 3
    assert [(each["name"], each["calls"], each["share"]) for each in found.kernels] == [
        ("_attention", 1, 0.3),
        ("gemm", 1, 0.2),
        ("Memcpy DtoH", 1, 0.02),
    ]
    assert [(gap["us"], gap["after"], gap["before"], gap["host"]) for gap in found.gaps] == [
        (28.0, "Memcpy DtoH", END, "cudaMemcpyAsync"),
        (15.0, BEGIN, "gemm", "Python in `forward`"),
        (10.0, "_attention", "Memcpy DtoH", "the device's own: launched 0 us before"),
    ]


def test_what_torch_exports_is_read_here(tmp_path: Path) -> None:
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profiler:
        for _ in range(2):
            with torch.profiler.record_function("marked"):
                torch.ones(64, 64).sum()
    profiler.export_chrome_trace(str(tmp_path / "trace.json"))
    steps = read_steps(json.loads((tmp_path / "trace.json").read_text()), "marked", categories=CPU_WORK)
    assert len(steps) == 2
    assert all({"aten::ones", "aten::sum"} <= {work.name for work in step.work} for step in steps)
    assert all(0 < busy_us(step.work) <= step.duration_us for step in steps)


# What is reported


def test_the_step_of_median_duration_is_taken() -> None:
    assert median_step([traced(3), traced(900), traced(1)]).duration_us == 3
    assert median_step([traced(4), traced(2)]).duration_us == 2
    with pytest.raises(ValueError, match="no step"):
        median_step([])


def test_ten_kernels_and_ten_gaps_are_listed() -> None:
    found = StepProfile.of(traced(1000, *(interval(f"k{i}", 30 * i, i + 1) for i in range(15))))
    assert len(found.gaps) == 10
    assert [each["name"] for each in found.kernels] == [f"k{i}" for i in range(14, 4, -1)]


def test_a_profile_without_kernels_is_a_failure() -> None:
    (finding,) = StepProfile.of(traced(1000)).findings("batch 1", unprofiled_ms=1.0)
    assert finding.holds is False


def test_a_profiles_lines_tell_step_kernel_and_gap() -> None:
    lines = StepProfile.of(traced(1000, interval("gemm" * 20, 100, 250))).findings("batch 1", unprofiled_ms=0.9)
    step, kernel, gap = (line.found for line in lines)
    assert step == "step 1.00 ms (0.90 without the profiler), device busy 25%, 1 launches"
    assert kernel.endswith("...: 1 calls, 250 us, 25% of the step")
    assert gap.startswith("650 us between gemmgemm")


def test_the_rehearsal_profiles_both_batches() -> None:
    place = Place(device=torch.device("cpu"), deadline_s=time.monotonic() + 60)
    report = step_profile.run(place)
    assert not any(finding.holds is False for finding in report.findings), report.findings
    saved = json.loads(json.dumps(report.details))
    for batch in ("batch 4", "batch 1"):
        assert len(saved[batch]["kernels"]) == len(saved[batch]["gaps"]) == 10
        assert {"mkldnn::_linear_pointwise", "aten::linear", "aten::matmul", "aten::mm"} & {
            each["name"] for each in saved[batch]["kernels"]
        }
        assert saved[batch]["step_us"] / 1e3 > 0.3 * saved[batch]["unprofiled_ms"]


def test_a_batch_for_which_there_is_no_time_is_said_to_be_left_out() -> None:
    report = step_profile.run(Place(device=torch.device("cpu"), deadline_s=time.monotonic()))
    assert [(finding.what, finding.holds) for finding in report.findings] == [
        ("batch 4", False),
        ("batch 1", False),
    ]


def test_a_batch_that_fails_leaves_what_the_one_before_it_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def profile_batch(*arguments: Any) -> tuple[StepProfile, float]:
        if arguments[2] == 1:
            raise StepsFailedError("request 4 failed")
        return StepProfile.of(traced(1000, interval("gemm", 100, 250))), 0.9

    monkeypatch.setattr(step_profile, "_profile_batch", profile_batch)
    report = step_profile.run(Place(device=torch.device("cpu"), deadline_s=time.monotonic() + 60))
    *of_first, failed = report.findings
    assert [finding.holds for finding in of_first] == [None] * 3
    assert (failed.what, failed.found, failed.holds) == ("batch 1", "request 4 failed", False)
    assert "batch 4" in report.details
