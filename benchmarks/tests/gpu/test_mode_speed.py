"""The modes part and the goals: what modes are worth, which verdicts follow, and what was not measured."""

import json
import time
from typing import Any

import pytest
import torch

from infer_bench.gpu import engine_speed, mode_speed
from infer_bench.gpu.benchmark_core import StepMode, StepsFailedError
from infer_bench.gpu.engine_speed import Sizes
from infer_bench.gpu.goals import (
    judge_bound,
    judge_first_requests,
    judge_idle,
    judge_prefill_attention,
    judge_throughput,
)
from infer_bench.gpu.mode_speed import ASYNC, BEST, EAGER, ENGINES, GRAPHS, MODES, compare, judge_graphs
from infer_bench.gpu.parts import Finding, Place
from infer_engine.model_runner.graphs.graph_check import GraphReport

SIZES = Sizes(batches=(1, 64), context=16, prompts=(), num_batched_tokens=64, num_steps=3)


def place(seconds: float = 120.0, device: str = "cpu") -> Place:
    return Place(device=torch.device(device), deadline_s=time.monotonic() + seconds)


GPU = place(device="cuda")


def speed(tokens_per_s: float, bound_share: float | None = 0.5) -> dict[str, Any]:
    limit = None if bound_share is None else "memory"
    return {"tokens_per_s": tokens_per_s, "bound_share": bound_share, "limit": limit, "ms": 2.0, "host_ms": 1.0}


def verdict(finding: Finding) -> bool | None:
    assert finding.is_goal
    return finding.holds


def test_modes_are_compared_batch_by_batch() -> None:
    speeds = {BEST: speed(600), GRAPHS: speed(500), EAGER: speed(125), ASYNC: speed(150)}
    modes = {name: {"batch 1": found} for name, found in speeds.items()}
    (finding,) = compare("m", modes, SIZES)
    assert finding.what == "m, batch 1"
    assert finding.found == (
        "graphs and async 600 tokens/s, 50% of the memory bound; 2.00 ms; graphs / eager x 4.00; async / not x 1.20; "
        "async / eager x 1.20; host ms: graphs and async 1.00, graphs 1.00, eager 1.00, async 1.00"
    )


def test_what_a_missing_mode_is_worth_is_not_said() -> None:
    (finding,) = compare("m", {GRAPHS: {"batch 64": speed(500)}, EAGER: {"batch 64": speed(250)}}, SIZES)
    assert "graphs 500 tokens/s" in finding.found
    assert "graphs / eager x 2.00" in finding.found
    assert "async" not in finding.found


def test_a_mode_names_its_fields_on_a_gpu_and_none_on_a_cpu() -> None:
    mode = StepMode(use_cuda_graphs=True, use_async_scheduling=False)
    assert mode.fields(GPU) == {"use_cuda_graphs": True, "use_async_scheduling": False}
    assert mode.fields(place()) == {}
    assert next(iter(MODES.values())) == StepMode(use_cuda_graphs=True, use_async_scheduling=True)


@pytest.mark.parametrize(
    ("num_seqs", "share", "holds"),
    [(1, 0.75, True), (1, 0.74, False), (64, 0.84, False), (256, 0.85, True), (1, None, False)],
)
def test_a_decode_is_judged_by_its_share_of_the_bound(num_seqs: int, share: float | None, *, holds: bool) -> None:
    assert verdict(judge_bound(GPU, num_seqs, speed(1, share))) is holds
    assert verdict(judge_bound(place(), num_seqs, speed(1, share))) is None  # a rehearsal judges nothing
    assert verdict(judge_bound(GPU, num_seqs, None)) is False  # not measured


def test_idle_time_throughput_and_attention_are_judged() -> None:
    assert [verdict(judge_idle(GPU, busy)) for busy in (0.96, 0.94, 1.01, None)] == [True, False, True, False]
    h200 = {rate: judge_throughput(GPU, "w", rate, gpu="NVIDIA H200") for rate in (30_000.0, 29_999.0, None)}
    assert [verdict(finding) for finding in h200.values()] == [True, False, False]
    assert verdict(judge_throughput(GPU, "w", 1.0, gpu="NVIDIA H100")) is None
    rows: list[dict[str, Any]] = [
        {"op": "paged_prefill", "label": "64", "rate": 100.0, "aim": ""},
        {"op": "paged_prefill", "label": "128", "rate": 351.0, "aim": "350 TFLOP/s"},
        {"op": "paged_prefill", "label": "128, longer", "failed": "OutOfResources"},
    ]
    assert verdict(judge_prefill_attention(GPU, rows[:2])) is True
    assert verdict(judge_prefill_attention(GPU, [*rows[:2], {**rows[1], "rate": 349.0}])) is False
    assert verdict(judge_prefill_attention(GPU, rows)) is False  # not launched
    assert verdict(judge_prefill_attention(GPU, rows[:1])) is False  # not timed


@pytest.mark.parametrize(
    ("slow", "holds"),
    [((0.010, 0.1), True), ((0.016, 0.124), True), ((0.018, 0.1), False), ((0.010, 0.126), False)],
)
@pytest.mark.parametrize("position", [0, 4])
def test_no_request_after_the_start_may_be_slower_than_the_tenth(
    slow: tuple[float, float], position: int, *, holds: bool
) -> None:
    times_s = [(0.010, 0.1)] * 10
    times_s[position] = slow
    assert verdict(judge_first_requests(GPU, times_s)) is holds


@pytest.mark.parametrize(
    ("found", "holds"),
    [
        ("42 steps are captured as CUDA graphs: 40 gave equal bits, 2 to rounding", True),
        ("CUDA graphs are not used: a captured step of 8 tokens computed something else", False),
        (None, False),  # asked for, and not heard of
    ],
)
def test_graphs_are_judged_by_what_the_engine_says_of_them(found: str | None, *, holds: bool) -> None:
    finding = judge_graphs("m", found)
    assert finding.holds is holds
    assert finding.found == (found or "nothing was captured")


def test_the_engine_says_so_if_it_refuses_graphs() -> None:
    assert judge_graphs("m", str(GraphReport(0, 0, refusal="a step is wrong"))).holds is False
    assert judge_graphs("m", str(GraphReport(4, 3))).holds is True


def test_the_rehearsal_measures_every_engine_in_every_mode() -> None:
    report = mode_speed.run(place())
    assert {finding.holds for finding in report.findings} == {None}
    saved = json.loads(json.dumps(report.details))
    for shape in ENGINES:
        assert saved[shape].keys() == set(MODES)
        assert all({"batch 1", "batch 4", "build_s", "graphs"} <= of_mode.keys() for of_mode in saved[shape].values())
    assert saved["qwen3-0.6b"][BEST]["throughput"]["tokens_per_s"] > 0
    assert sum(finding.is_goal for finding in report.findings) == 2


def test_a_mode_that_fails_ends_no_other_and_its_goals_are_not_met(monkeypatch: pytest.MonkeyPatch) -> None:
    decode = engine_speed.decode
    failures = iter([True])

    def fail_once(*arguments: Any) -> dict[str, Any]:
        if next(failures, False):
            raise StepsFailedError("request 4 failed")
        return decode(*arguments)

    monkeypatch.setattr(mode_speed, "decode", fail_once)
    monkeypatch.setattr(mode_speed, "ENGINES", ENGINES[:1])
    report = mode_speed.run(place())
    wrong = {finding.what: finding.found for finding in report.findings if finding.holds is False}
    assert wrong.keys() == {"llama-3.2-3b, graphs and async", "llama-3.2-3b, decode, batch 1"}
    assert "request 4 failed" in wrong["llama-3.2-3b, graphs and async"]
    assert any("graphs / eager" in finding.found for finding in report.findings)


def test_what_there_is_no_time_for_does_not_hold() -> None:
    report = mode_speed.run(place(seconds=0))
    assert {finding.holds for finding in report.findings} == {False}
    assert len(report.findings) == len(ENGINES) * len(MODES) + 2
