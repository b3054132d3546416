"""Policies are compared by medians of rounds, and judged by urgent requests and by throughput."""

from typing import Any

import pytest

from infer_bench.client.load import RequestResult
from infer_bench.limits import judge
from infer_bench.serving.policies import LOADS, METRICS, limits_of, metrics_of
from infer_engine.scheduling import POLICIES

GOOD = {"priority": {"urgent_ttft_p50_s": 0.1}}


def result_of(better: dict[str, dict[str, float]]) -> dict[str, Any]:
    base = dict.fromkeys(METRICS.values(), 0.5)
    found = {policy: [base | better.get(policy, {})] * 3 for policy in POLICIES}
    return {"turns": dict.fromkeys(LOADS, found)}


@pytest.mark.parametrize(
    ("worse", "what"),
    [
        ({"priority": {"urgent_ttft_p50_s": 0.3}}, "TTFT of urgent requests on arrivals"),
        (GOOD | {"prefill_first": {"output_tokens_per_s": 0.4}}, "tokens/s of `prefill_first` on small steps"),
    ],
)
def test_urgent_requests_come_first_and_no_policy_costs_much(
    worse: dict[str, dict[str, float]], what: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert judge(limits_of(result_of(GOOD))) == 0
    assert judge(limits_of(result_of(worse))) == 1
    assert f"limit missed: {what}" in capsys.readouterr().err


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
