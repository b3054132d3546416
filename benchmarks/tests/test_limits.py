"""Limits are judged: a benchmark that misses one says so, and its exit code is 1."""

import math
from typing import Any

import pytest

from infer_bench.limits import Limit, judge
from infer_bench.offline import engine
from infer_bench.serving import streaming, workloads

FAST = [{"streams": 8, "tokens_per_s": 9000.0, "health_median_ms": 1.0, "health_max_ms": 49.0}]
QUIET = [{"bytes": 0, "longest_gap_ms": 10.0}, {"bytes": 5_000_000, "longest_gap_ms": 59.0}]


@pytest.mark.parametrize(
    ("value", "holds"), [(1.0, True), (2.0, True), (2.01, False), (0.99, False), (math.nan, False)]
)
def test_a_limit_holds_between_its_bounds(value: float, holds: bool) -> None:  # noqa: FBT001 - a case
    assert Limit(what="x", value=value, least=1, most=2).holds is holds


@pytest.mark.covers("workloads/limits")
def test_a_missed_limit_is_named_and_makes_the_exit_code_1(capsys: pytest.CaptureFixture[str]) -> None:
    held = Limit(what="fine", value=1.0, most=2)
    assert judge([held]) == 0
    assert judge([held, Limit(what="a step", value=4.3, unit="ms", most=2.0)]) == 1
    assert capsys.readouterr().err == "limit missed: a step: 4.3 ms, wanted at most 2 ms\n"


def test_steps_are_judged_without_choosing_tokens() -> None:
    row: dict[str, Any] = {"running": 256, "params": "drawn", "total_ms": 4.3, "choose_ms": 2.4}
    assert judge(engine.limits([row])) == 0
    assert judge(engine.limits([row | {"choose_ms": 2.2}])) == 1


@pytest.mark.covers("workloads/limits")
@pytest.mark.parametrize(("limit_ms", "code"), [(1000.0, 0), (0.0, 1)])
def test_the_engine_benchmark_fails_where_a_step_is_too_slow(
    limit_ms: float, code: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine, "RUNNING", (2,))
    monkeypatch.setattr(engine, "LIMIT_MS", limit_ms)
    assert engine.main(["--quick", "--threads", "1"]) == code


@pytest.mark.covers("workloads/limits")
@pytest.mark.parametrize(
    ("worse", "missed"),
    [
        ({}, ""),
        ({"tokens_per_s": 7999.0}, "8 streams: 7999 tokens/s, wanted at least 8000 tokens/s"),
        ({"health_max_ms": 50.1}, "longest answer of /health beside 8 streams: 50.1 ms, wanted at most 50 ms"),
    ],
    ids=["fine", "slow", "health"],
)
def test_streams_have_a_floor_and_health_a_limit(
    worse: dict[str, float], missed: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert judge(streaming.limits([FAST[0] | worse], QUIET)) == (1 if missed else 0)
    assert missed in capsys.readouterr().err


def test_a_long_prompt_may_silence_streams_for_50_ms_more_than_none() -> None:
    assert judge(streaming.limits(FAST, [QUIET[0], QUIET[1] | {"longest_gap_ms": 60.1}])) == 1


@pytest.mark.covers("workloads/limits")
def test_requests_that_failed_are_counted_in_all_runs() -> None:
    load = {"runs": [{"num_errors": 0}, {"num_errors": 2}]}
    assert workloads.count_errors({"runs": [load, load]}) == 4
    assert workloads.count_errors({"workloads": {"single": {"runs": [{"num_errors": 1}]}, "mixed": load}}) == 3
