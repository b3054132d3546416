"""The simulation of many replicas: its numbers add up, and it tells what routing and ingresses do."""

from pathlib import Path

import pytest

from infer_bench.scaling import simulate
from infer_bench.scaling.simulate import INGRESS_TOKEN_S, MEASURED_S, NEW_TOKENS, TIMES, Simulation
from infer_engine.protocol.config import RoutingPolicy


def run(num_replicas: int, policy: RoutingPolicy = "prefix", **settings: float) -> dict[str, float]:
    found = Simulation(num_replicas, policy=policy, **{"num_ingresses": 1, "rate": 1.5} | settings).run()  # type: ignore[arg-type]  # by name
    del found["simulated in, s"]
    return found


def test_prefixes_are_found_where_they_were_sent() -> None:
    by_prefix, at_random = run(4), run(4, "random")
    assert by_prefix["prefix hits"] >= 1.5 * at_random["prefix hits"]
    assert by_prefix["TTFT p50, ms"] < at_random["TTFT p50, ms"]


def test_all_that_is_asked_for_is_generated() -> None:
    found = run(16)
    assert found["tokens/s"] == pytest.approx(16 * 1.5 * NEW_TOKENS, rel=0.15)
    assert found["ingress busy"] == pytest.approx(16 * 1.5 * NEW_TOKENS * INGRESS_TOKEN_S, rel=0.15)


def test_the_first_token_of_a_prompt_alone_takes_the_time_of_its_steps() -> None:
    found = run(1, rate=0.25)
    own_tokens_s = (simulate.OWN_TOKENS + simulate.SHARED_TOKENS) * TIMES.prompt_token_s
    assert found["TTFT p99, ms"] == pytest.approx(1e3 * (own_tokens_s + 2 * TIMES.base_s), rel=0.05)


def test_an_ingress_sends_no_more_than_its_processor_can(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(simulate, "INGRESS_TOKEN_S", 2e-3)
    found, relieved = run(16), run(16, num_ingresses=8)
    assert found["tokens/s"] == pytest.approx(1 / 2e-3, rel=0.01)
    assert found["TTFT p99, ms"] > 1e3 * MEASURED_S / 4 > relieved["TTFT p99, ms"]


def test_ingresses_that_begin_with_the_same_replica_pile_up_their_first_requests() -> None:
    apart, together = (run(64, num_ingresses=8, starts_together=found) for found in (False, True))
    assert together["TTFT p99, ms"] > 1.2 * apart["TTFT p99, ms"]


def test_the_same_seed_gives_the_same_numbers() -> None:
    assert run(4) == run(4)


def test_a_hot_group_overflows_to_other_replicas() -> None:
    waited = [run(16, rate=6.0, skew=2.0, max_extra_load=load)["TTFT p50, ms"] for load in (8, 64)]
    assert waited[0] < waited[1] / 4


def test_a_table_has_a_row_for_each_plan(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    simulate.main(["--replicas", "2", "--max-extra-load", "1", "8", "--out", str(tmp_path)])
    assert "| 2 | 1 | prefix, 8 |" in capsys.readouterr().out
    assert (tmp_path / "scaling.json").is_file()
