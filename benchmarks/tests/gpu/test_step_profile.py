"""The profile of a step: busy time, gaps and kernels of overlapping streams, and how they are read from a trace."""

import json
import time
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from infer_bench.gpu import step_profile
from infer_bench.gpu.benchmark_core import StepsFailedError
from infer_bench.gpu.parts import Place
from infer_bench.gpu.step_profile import GPU_WORK, Event, describe, find_gaps, profile_of, read_steps


def place(seconds: float = 120.0) -> Place:
    return Place(device=torch.device("cpu"), deadline_s=time.monotonic() + seconds)


def complete(cat: str, name: str, ts: float, dur: float) -> dict[str, Any]:
    return {"ph": "X", "cat": cat, "name": name, "pid": 0, "tid": 7, "ts": ts, "dur": dur, "args": {}}


TRACE = {
    "schemaVersion": 1,
    "traceEvents": [
        {"ph": "M", "name": "process_name", "ts": 0, "pid": 0, "tid": 0, "args": {"name": "python"}},
        complete("user_annotation", "ProfilerStep#3", 1000.0, 100.0),
        complete("user_annotation", "forward", 1005.0, 50.0),
        complete("gpu_user_annotation", "ProfilerStep#3", 1015.0, 80.0),
        complete("cpu_op", "aten::mm", 1008.0, 6.0),
        complete("cuda_runtime", "cudaLaunchKernel", 1010.0, 3.0),
        complete("kernel", "gemm", 1015.0, 20.0),
        complete("kernel", "_attention", 1030.0, 30.0),  # on another stream
        complete("kernel", "gemm", 1040.0, 2.0),
        complete("gpu_memcpy", "Memcpy DtoH", 1070.0, 2.0),
    ],
}


def test_a_profile_of_a_trace_has_busy_time_kernels_and_gaps() -> None:
    found = profile_of(*read_steps(TRACE, categories=GPU_WORK), unprofiled_us=94.0)
    assert found["busy_us"] == 45.0 + 2.0  # kernels overlap
    assert (found["busy_share"], found["num_launches"]) == (0.5, 4)
    assert found["kernels"] == [
        {"name": "_attention", "calls": 1, "us": 30.0},
        {"name": "gemm", "calls": 2, "us": 22.0},
        {"name": "Memcpy DtoH", "calls": 1, "us": 2.0},
    ]
    assert found["gaps"] == [
        {"us": 28.0, "after": "Memcpy DtoH", "before": "the last step's end"},
        {"us": 15.0, "after": "the first step's begin", "before": "gemm"},
        {"us": 10.0, "after": "_attention", "before": "Memcpy DtoH"},
    ]


@given(st.lists(st.tuples(st.integers(0, 100), st.integers(0, 30)), max_size=20))
def test_busy_time_is_every_moment_in_which_a_kernel_runs(drawn: list[tuple[int, int]]) -> None:
    gaps = find_gaps(Event("step", 0, 200), [Event("k", start, start + duration) for start, duration in drawn])
    busy = {moment for start, duration in drawn for moment in range(start, start + duration)}
    assert 200 - sum(gap["us"] for gap in gaps) == len(busy)
    assert gaps == sorted(gaps, key=lambda gap: -gap["us"])


def test_steps_whose_kernels_run_while_the_host_plans_the_next_count_in_all_as_often() -> None:
    """The device computes without a pause, one step behind the host."""
    steps = [Event(f"ProfilerStep#{number}", 100.0 * number, 100.0 * number + 95.0) for number in (3, 4)]
    work = [Event("gemm", 100.0 * number + 60.0, 100.0 * number + 158.0) for number in (1, 2, 3, 4, 5)]
    found = profile_of(steps, work, unprofiled_us=100.0)
    assert found["profiled_us"] == (495.0 - 300.0) / 2
    assert found["busy_us"] == (58.0 + 98.0 + 35.0) / 2  # of the work that began before and ends after, what is inside
    assert found["kernels"] == [{"name": "gemm", "calls": 1.5, "us": found["busy_us"]}]
    assert found["gaps"] == [{"us": 2.0, "after": "gemm", "before": "gemm"}] * 2


def test_a_step_without_kernels_does_not_hold() -> None:
    (nothing,) = describe(place(), "batch 1", profile_of([Event("step", 0, 9)], [], unprofiled_us=9))
    assert nothing.holds is False


def test_the_rehearsal_profiles_every_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("infer_kernels.dispatch", "infer_engine.assembly.runner"):  # the profiler sees PyTorch alone
        monkeypatch.setattr(f"{module}.library", lambda *_: None)
    report = step_profile.run(place())
    assert {finding.holds for finding in report.findings} == {None}
    saved = json.loads(json.dumps(report.details))
    for batch in ("batch 4", "batch 1"):
        names = {each["name"] for each in saved[batch]["kernels"]}
        assert names & {"aten::linear", "aten::matmul", "aten::mm"}
        assert 0 < saved[batch]["busy_us"] <= saved[batch]["profiled_us"]


def test_a_batch_without_time_or_that_fails_does_not_hold(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise StepsFailedError("request 4 failed")

    findings = step_profile.run(place(seconds=0)).findings
    judged = [(finding.what, finding.holds) for finding in findings]
    assert judged == [("batch 4", False), ("batch 1", False), ("device idle, batch 1", False)]
    monkeypatch.setattr(step_profile, "profile_decode", fail)
    finding, _ = step_profile.run(place()).findings
    assert (finding.what, finding.holds) == ("batch 4", False)
    assert "request 4 failed" in finding.found
