"""The profile of a step: busy time, gaps and kernels of overlapping streams, and how they are read from a trace."""

import json
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from infer_bench.gpu import step_profile
from infer_bench.gpu.benchmark_core import StepsFailedError
from infer_bench.gpu.parts import Place
from infer_bench.gpu.step_profile import (
    BEGIN,
    CPU_WORK,
    END,
    Event,
    TracedStep,
    describe,
    explain_gap,
    find_gaps,
    median_step,
    profile_of,
    read_steps,
    total_by_name,
)


def event(name: str, start_us: float, duration_us: float, *, launched_us: float | None = None) -> Event:
    return Event(name=name, start_us=start_us, end_us=start_us + duration_us, launched_us=launched_us)


def mark(name: str, start_us: float, duration_us: float) -> Event:
    return Event(name=name, start_us=start_us, end_us=start_us + duration_us, is_mark=True)


def traced(duration_us: float, *work: Event) -> TracedStep:
    return TracedStep(mark=mark("step", 0.0, duration_us), work=list(work), calls=[])


def place(seconds: float = 120.0) -> Place:
    return Place(device=torch.device("cpu"), deadline_s=time.monotonic() + seconds)


OVERLAPPING = [
    event("long", 10, 50),
    event("short", 20, 5),  # within it, on another stream
    event("late", 55, 25),  # across its end
    event("touching", 80, 10),
    event("last", 100, 1),
]


# Gaps and kernels


def test_gaps_have_their_neighbours_names_and_the_longest_comes_first() -> None:
    step = traced(106, *reversed(OVERLAPPING))
    assert [(gap["after"], gap["before"], gap["us"]) for gap in find_gaps(step)] == [
        (BEGIN, "long", 10),
        ("touching", "last", 10),
        ("last", END, 5),
    ]
    assert profile_of(step)["busy_us"] == 81


def test_a_kernel_within_another_does_not_end_the_busy_time() -> None:
    assert [(gap["after"], gap["us"]) for gap in find_gaps(traced(70, *OVERLAPPING[:2]))] == [(BEGIN, 10), ("long", 10)]


def test_a_step_without_kernels_is_one_gap() -> None:
    (gap,) = find_gaps(traced(4))
    assert (gap["after"], gap["before"], gap["us"]) == (BEGIN, END, 4)


@given(st.lists(st.tuples(st.integers(0, 100), st.integers(0, 30)), max_size=20))
def test_busy_time_is_every_moment_in_which_a_kernel_runs(drawn: list[tuple[int, int]]) -> None:
    step = traced(200, *(event("k", start, duration) for start, duration in drawn))
    busy = {moment for start, duration in drawn for moment in range(start, start + duration)}
    assert profile_of(step)["busy_us"] == len(busy)
    assert profile_of(step)["busy_share"] == pytest.approx(len(busy) / 200)


def test_kernels_of_one_name_are_added_up() -> None:
    totals = total_by_name(traced(10, event("a", 0, 1), event("b", 1, 5), event("a", 6, 2)))
    assert [(total["name"], total["calls"], total["total_us"]) for total in totals] == [("b", 1, 5), ("a", 2, 3)]


CALLS = [
    mark("step", 0, 100),
    mark("forward", 10, 60),
    event("aten::linear", 20, 10),
    event("cudaLaunchKernel", 26, 3),
]


@pytest.mark.parametrize(
    ("start_us", "launched_us", "why"),
    [
        (20, 24, "aten::linear"),
        (26, 28, "cudaLaunchKernel"),
        (40, 60, "Python in `forward`"),
        (80, 90, "Python in `step`"),
        (50, 20, "the device's own: launched 30 us before"),
        (200, 210, "not known"),
        (60, None, "Python in `step`"),  # the middle of the gap
    ],
)
def test_a_gap_is_explained_by_what_the_host_did_before_the_launch(
    start_us: float, launched_us: float | None, why: str
) -> None:
    following = event("k", start_us + 45, 1, launched_us=launched_us)
    assert explain_gap(start_us, following, CALLS) == why


# The trace


def complete(cat: str, name: str, ts: float, dur: float, **args: int) -> dict[str, Any]:
    return {"ph": "X", "cat": cat, "name": name, "pid": 0, "tid": 7, "ts": ts, "dur": dur, "args": args}


TRACE: dict[str, Any] = {
    "schemaVersion": 1,
    "traceEvents": [
        {"ph": "M", "name": "process_name", "ts": 0, "pid": 0, "tid": 0, "args": {"name": "python"}},
        {"ph": "s", "id": 11, "cat": "ac2g", "name": "ac2g", "pid": 0, "tid": 7, "ts": 1010.0},
        complete("user_annotation", "step", 2000.0, 100.0),
        complete("user_annotation", "step", 1000.0, 100.0),
        complete("user_annotation", "forward", 1005.0, 50.0),
        complete("cpu_op", "aten::mm", 1008.0, 6.0),
        complete("cuda_runtime", "cudaLaunchKernel", 1010.0, 3.0, correlation=11),
        complete("cuda_driver", "cuLaunchKernelEx", 1020.0, 3.0, correlation=12),
        complete("cuda_runtime", "cudaMemcpyAsync", 1060.0, 30.0, correlation=13),
        complete("cuda_driver", "cuLaunchKernelEx", 2010.0, 3.0, correlation=14),
        complete("gpu_user_annotation", "step", 1015.0, 80.0, stream=7),
        complete("kernel", "gemm", 1015.0, 20.0, stream=7, correlation=11),
        complete("kernel", "_attention", 1030.0, 30.0, stream=9, correlation=12),
        complete("gpu_memcpy", "Memcpy DtoH", 1070.0, 2.0, stream=7, correlation=13),
        complete("kernel", "early", 1999.0, 5.0, stream=7, correlation=14),  # clocks differ by a little
        complete("kernel", "unlaunched", 2050.0, 5.0, stream=7),
        complete("kernel", "between steps", 1500.0, 5.0, stream=7),
    ],
}


def test_a_steps_work_is_what_it_launched_or_else_what_began_in_it() -> None:
    first, second = read_steps(TRACE, "step")
    assert (first.mark.start_us, first.mark.end_us, second.mark.start_us) == (1000.0, 1100.0, 2000.0)
    assert {work.name: work.launched_us for work in first.work} == {
        "gemm": 1010.0,
        "_attention": 1020.0,
        "Memcpy DtoH": 1060.0,
    }
    assert {work.name: work.launched_us for work in second.work} == {"early": 2010.0, "unlaunched": None}


def test_a_steps_calls_are_operators_driver_calls_and_marks() -> None:
    first, _ = read_steps(TRACE, "step")
    assert {call.name for call in first.calls if call.is_mark} == {"step", "forward"}
    others = {call.name for call in first.calls if not call.is_mark}
    assert others == {"aten::mm", "cudaLaunchKernel", "cuLaunchKernelEx", "cudaMemcpyAsync"}


def test_a_profile_of_the_trace_has_kernels_gaps_and_their_reasons() -> None:
    found = profile_of(read_steps(TRACE, "step")[0])
    assert found["busy_us"] == 45.0 + 2.0  # two kernels overlap by 5
    assert found["busy_share"] == pytest.approx(0.47)
    assert found["num_launches"] == 3
    assert [(each["name"], each["calls"], each["share"]) for each in found["kernels"]] == [
        ("_attention", 1, 0.3),
        ("gemm", 1, 0.2),
        ("Memcpy DtoH", 1, 0.02),
    ]
    assert [(gap["us"], gap["after"], gap["before"], gap["host"]) for gap in found["gaps"]] == [
        (28.0, "Memcpy DtoH", END, "cudaMemcpyAsync"),
        (15.0, BEGIN, "gemm", "Python in `forward`"),
        (10.0, "_attention", "Memcpy DtoH", "the device's own: launched 0 us before"),
    ]


def test_what_torch_exports_can_be_read(tmp_path: Path) -> None:
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profiler:
        for _ in range(2):
            with torch.profiler.record_function("marked"):
                torch.ones(64, 64).sum()
    profiler.export_chrome_trace(str(tmp_path / "trace.json"))
    steps = read_steps(json.loads((tmp_path / "trace.json").read_text()), "marked", categories=CPU_WORK)
    assert len(steps) == 2
    assert all({"aten::ones", "aten::sum"} <= {work.name for work in step.work} for step in steps)
    assert all(0 < profile_of(step)["busy_us"] <= step.duration_us for step in steps)


# What is reported


def test_the_step_of_median_duration_is_taken() -> None:
    assert median_step([traced(3), traced(900), traced(1)]).duration_us == 3
    assert median_step([traced(4), traced(2)]).duration_us == 2
    with pytest.raises(ValueError, match="no step"):
        median_step([])


def test_the_findings_are_the_step_its_largest_kernel_and_its_longest_gap() -> None:
    found = profile_of(traced(1000, event("gemm" * 20, 100, 250))) | {"unprofiled_ms": 0.9}
    step, kernel, gap = (line.found for line in describe("batch 1", found))
    assert step == "step 1.00 ms (0.90 without the profiler), device busy 25%, 1 launches"
    assert kernel.endswith("...: 1 calls, 250 us, 25% of the step")
    assert gap.startswith("650 us between gemmgemm")
    (nothing,) = describe("batch 1", profile_of(traced(1000)))
    assert nothing.holds is False


def test_the_rehearsal_profiles_both_batches() -> None:
    report = step_profile.run(place())
    assert not any(finding.holds is False for finding in report.findings), report.findings
    saved = json.loads(json.dumps(report.details))
    for batch in ("batch 4", "batch 1"):
        assert len(saved[batch]["kernels"]) == len(saved[batch]["gaps"]) == 10
        names = {each["name"] for each in saved[batch]["kernels"]}
        assert names & {"mkldnn::_linear_pointwise", "aten::linear", "aten::matmul", "aten::mm"}
        assert saved[batch]["unprofiled_ms"] > 0


def test_a_batch_without_time_does_not_hold() -> None:
    findings = step_profile.run(place(seconds=0)).findings
    assert [(finding.what, finding.holds) for finding in findings] == [("batch 4", False), ("batch 1", False)]


def test_a_batch_that_fails_leaves_the_results_of_the_one_before(monkeypatch: pytest.MonkeyPatch) -> None:
    def profile_batch(_place: Place, _core: object, num_seqs: int, _sizes: object) -> dict[str, Any]:
        if num_seqs == 1:
            raise StepsFailedError("request 4 failed")
        return profile_of(traced(1000, event("gemm", 100, 250))) | {"unprofiled_ms": 0.9}

    monkeypatch.setattr(step_profile, "profile_batch", profile_batch)
    report = step_profile.run(place())
    *of_first, failed = report.findings
    assert [finding.holds for finding in of_first] == [None] * 3
    assert (failed.what, failed.found, failed.holds) == ("batch 1", "request 4 failed", False)
    assert "batch 4" in report.details
