"""Policies are compared by medians of rounds, and each is judged by what it is for."""

from typing import Any

import pytest

from infer_bench.client.load import RequestResult
from infer_bench.limits import judge
from infer_bench.serving.policies import LOADS, METRICS, PROMISES, limits_of, metrics_of, policies_table
from infer_engine.scheduling import POLICIES

GOOD = {
    "prefill_first": {"ttft_p50_s": 0.2},
    "decode_round_robin": {"longest_gap_s": 0.3},
    "priority": {"urgent_ttft_p50_s": 0.1},
}


def result_of(better: dict[str, dict[str, float]]) -> dict[str, Any]:
    base = dict.fromkeys(METRICS.values(), 0.5)
    found = {policy: [base | better.get(policy, {})] * 3 for policy in POLICIES}
    return {"turns": dict.fromkeys(LOADS, found)}


def test_every_policy_but_the_first_is_judged() -> None:
    assert set(PROMISES) == set(POLICIES) - {"fcfs"}
    assert judge(limits_of(result_of(GOOD))) == 0


@pytest.mark.parametrize("policy", GOOD)
def test_a_policy_that_does_not_do_what_it_is_for_is_named(policy: str, capsys: pytest.CaptureFixture[str]) -> None:
    [(metric, _)] = GOOD[policy].items()
    assert judge(limits_of(result_of(GOOD | {policy: {metric: 0.51}}))) == 1
    assert f"`{metric}` of `{policy}`" in capsys.readouterr().err


def test_a_round_has_every_number_and_urgent_requests_by_themselves() -> None:
    slow, urgent = (
        RequestResult(arrival_s=1.0, sent_s=1.0, num_prompt_tokens=1, num_tokens=3, token_times_s=times_s)
        for times_s in ([2.0, 2.1, 2.4], [1.5, 1.6, 1.9])
    )
    found = metrics_of([slow, urgent], [urgent])
    assert set(found) == set(METRICS.values())
    assert found["urgent_ttft_p50_s"] == 0.5
    assert found["ttft_p50_s"] == 0.75
    assert found["longest_gap_s"] == pytest.approx(0.3)
    assert found["output_tokens_per_s"] == pytest.approx(6 / 1.4)


def test_the_table_has_a_row_for_each_policy_on_each_load() -> None:
    lines = policies_table(result_of(GOOD)).splitlines()
    assert len(lines) == 2 + len(LOADS) * len(POLICIES)
    assert "| arrivals | `priority` | 0.5/s | 500 ms | 100 ms |" in lines[5]
