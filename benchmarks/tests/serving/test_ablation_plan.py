"""The ablation's claims are judged by the numbers alone, each can fail, and the tables are those of a result's JSON."""

import json
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest

from infer_bench.client.workloads import WORKLOADS
from infer_bench.serving.ablation import METRICS, caps_table, chunks_table, count_capacities, latency_table, report
from infer_bench.serving.ablation_plan import (
    CPU,
    EXPECTATIONS,
    LABELS,
    LENGTHS,
    ONE_BY_ONE,
    RUNS,
    SLOTS,
    STEPS,
    Capacity,
    Measured,
    judge,
    server_options,
)
from infer_bench.serving.plots import plot_ladder

ANY = dict.fromkeys(METRICS, 1.0) | {"num_decoding_mean": 3.0, "output_tokens_per_s": 100.0}
BETTER: dict[tuple[str, str], dict[str, float]] = {
    ("static", "mixed"): {"output_tokens_per_s": 300.0},
    ("static", "continuous_batching"): {"ttft_p99_s": 2.0},
    ("matched", "paged_attention"): {"kv_occupancy_peak": 0.2, "num_decoding_peak": 8.0},
    ("paged", "paged_attention"): {"num_decoding_peak": 32.0, "output_tokens_per_s": 200.0},
    ("capped", "mixed"): {"output_tokens_per_s": 40.0},
    ("capped", "paged_attention"): {"ttft_p50_s": 2.0},
    ("paged", ONE_BY_ONE): {"output_tokens_per_s": 50.0},
    ("chunked", "chunked_prefill"): {"itl_p99_s": 0.5},
    ("uncapped", "chunked_prefill"): {"itl_p99_s": 0.5},
    ("prefix", "prefix_caching"): {"ttft_p50_s": 0.1},
    ("beside", "chunked_prefill"): {"itl_p99_s": 0.1},
}
GOOD: Measured = {step: {name: ANY | BETTER.get((step, name), {}) for name in names} for step, names in RUNS.items()}
FITTING = [
    Capacity(256, 8, 128),
    Capacity(512, 8, 64),
    Capacity(1024, 8, 32),
    Capacity(2048, 8, 16),
    Capacity(4096, 8, 8),
]
WORSE = [
    ("static", "mixed", "output_tokens_per_s", 100.0),
    ("continuous", "continuous_batching", "num_decoding_mean", 1.9),
    ("continuous", "continuous_batching", "ttft_p99_s", 2.0),
    ("continuous", "continuous_batching", "output_tokens_per_s", 94.0),
    ("matched", "paged_attention", "output_tokens_per_s", 94.0),
    ("matched", "paged_attention", "kv_occupancy_peak", 1.0),
    ("paged", "paged_attention", "num_decoding_peak", 8.0),
    ("paged", "mixed", "output_tokens_per_s", 50.0),
    ("capped", "mixed", "output_tokens_per_s", 100.0),
    ("capped", "paged_attention", "ttft_p50_s", 1.0),
    ("capped", "chunked_prefill", "itl_p99_s", 0.99),
    ("uncapped", "chunked_prefill", "itl_p99_s", 0.51),
    ("prefix", "prefix_caching", "ttft_p50_s", 1.0),
    ("beside", "chunked_prefill", "itl_p99_s", 1.0),
    ("static", "baseline", "output_tokens_per_s", 94.0),
    ("matched", "baseline", "output_tokens_per_s", 94.0),
]
"""One number that is no better than before, and breaks one claim. Those of the burst and of chunks break two."""


def changed(step: str, workload: str, metric: str, value: float) -> Any:
    measured: Any = deepcopy(GOOD)
    measured[step][workload][metric] = value
    return measured


def broken(measured: Measured) -> list[str]:
    return [claim.text for claim in judge(measured, capacities=FITTING) if not claim.held]


def as_saved(measured: Measured) -> dict[str, Any]:
    """A result as its file has it."""
    claims = [claim._asdict() for claim in judge(measured, capacities=FITTING)]
    capacity = [each._asdict() for each in FITTING]
    options = server_options(CPU, "llama-30m")
    text = json.dumps({"medians": measured, "claims": claims, "capacity": capacity, "options": options})
    return dict(json.loads(text))


def test_claims_hold_on_numbers_that_bear_them_out() -> None:
    claims = judge(GOOD, capacities=FITTING)
    assert len(claims) == len(EXPECTATIONS) + len(FITTING) + 2
    assert all(claim.held for claim in claims)
    steps = [claim.step for claim in claims]
    assert steps == sorted(steps, key=list(LABELS).index)
    assert set(steps) == {*STEPS, "uncapped"} - {"one", "capped"}


@pytest.mark.covers(
    "experiments/static-beats-one-by-one",
    "experiments/continuous-beats-static",
    "experiments/paged-beats-slots",
    "experiments/chunks-halve-itl",
    "experiments/prefix-caching-lowers-ttft",
    "experiments/baseline-not-slower",
    "experiments/concurrent-beats-one-by-one",
)
@pytest.mark.parametrize(("step", "workload", "metric", "value"), WORSE)
def test_claim_is_not_held_where_its_number_is_no_better(step: str, workload: str, metric: str, value: float) -> None:
    claims = judge(changed(step, workload, metric, value), capacities=FITTING)
    [failed] = [claim for claim in claims if not claim.held]
    assert workload in failed.evidence


@pytest.mark.covers(
    "experiments/static-beats-one-by-one",
    "experiments/continuous-beats-static",
    "experiments/paged-beats-slots",
    "experiments/chunks-halve-itl",
    "experiments/prefix-caching-lowers-ttft",
    "experiments/concurrent-beats-one-by-one",
)
@pytest.mark.parametrize("expected", EXPECTATIONS, ids=lambda expected: expected.text)
def test_every_claim_can_fail(expected: Any) -> None:
    is_less = expected.compare(0.0, 1.0)
    assert expected.text in broken(changed(expected.step, expected.workload, expected.metric, 1e9 if is_less else 0.0))


def test_only_claims_whose_steps_were_measured_are_judged() -> None:
    assert judge({}, capacities=[]) == judge({"chunked": GOOD["chunked"]}, capacities=[]) == []
    two = judge({step: GOOD[step] for step in ("static", "continuous")}, capacities=[])
    assert {claim.step for claim in two} == {"continuous"}
    assert len(two) == 3
    first = judge({step: GOOD[step] for step in ("one", "matched")}, capacities=[])
    assert [claim.step for claim in first] == ["matched"]


@pytest.mark.covers("experiments/paged-beats-slots")
def test_a_faster_burst_is_judged_beside_slots_and_beside_blocks_of_the_same_batch() -> None:
    slower = broken(changed("paged", "paged_attention", "output_tokens_per_s", 100.0))
    assert [text.partition(",")[0] for text in slower] == [
        "and a burst is done faster",
        "blocks and larger batch together do a burst faster than slots",
    ]


@pytest.mark.covers("experiments/chunks-halve-itl")
def test_chunks_are_judged_beside_whole_prompts_with_and_without_the_cap() -> None:
    assert len(broken(changed("chunked", "chunked_prefill", "itl_p99_s", 0.51))) == 2
    assert len(broken(changed("paged", "chunked_prefill", "itl_p99_s", 0.99))) == 2


@pytest.mark.covers("experiments/paged-holds-more")
def test_capacity_counts_sixteen_to_one_times_as_many_sequences() -> None:
    assert count_capacities() == FITTING
    assert [SLOTS * 4096 // length for length in LENGTHS] == [each.in_blocks for each in FITTING]
    assert count_capacities([512], max_seq_len=512) == [Capacity(512, SLOTS, SLOTS)]


@pytest.mark.covers("experiments/paged-holds-more")
@pytest.mark.parametrize("index", range(len(FITTING)))
def test_claim_about_capacity_is_not_held_where_one_sequence_less_fits(index: int) -> None:
    fewer = [each._replace(in_blocks=each.in_blocks - (index == at)) for at, each in enumerate(FITTING)]
    [failed] = [claim for claim in judge(GOOD, capacities=fewer) if not claim.held]
    assert f"of {FITTING[index].num_tokens} tokens" in failed.text
    assert f"8 -> {FITTING[index].in_blocks - 1}" in failed.evidence


def test_report_is_made_of_a_saved_result_and_says_what_did_not_hold() -> None:
    text = report(as_saved(changed("prefix", "prefix_caching", "ttft_p50_s", 3.0)))
    assert all(text.count(f"\n| {label} | ") >= 1 for label in STEPS.values())
    assert "\n| one by one | 100/s | 100/s |  |  |  |  |  |  |  |  |" in text
    assert f"\n| {STEPS['static']} | 100/s | 300/s | 2.00 s | 3 | 1 |  |  |  |  |  |" in text
    assert text.count("**not held**") == 1
    assert "`prefix_caching`: 1.00 s -> 3.00 s (x3.00)" in text
    assert "| 256 | 8 | 128 | 16 |" in text
    assert "| 4096 | 8 | 8 | 1 |" in text


@pytest.mark.covers("experiments/by-chunk-size", "workloads/latency")
def test_tables_have_p50_and_p99_of_every_workload_chunk_and_cap() -> None:
    result = as_saved(GOOD)
    latencies = latency_table(result)
    head, _, *rows = latencies.splitlines()
    assert all(f"{name} P{percent}" in head for name in ("TTFT", "ITL") for percent in (50, 99))
    assert len(rows) == sum(len(names) for step, names in RUNS.items() if step in STEPS)
    for name in WORKLOADS:
        assert f"| `{name}` | {STEPS['beside']} | 100/s | 1.00 s | 1.00 s | " in latencies
    sizes = [row.split(" | ")[:2] for row in chunks_table(result).splitlines()[2:]]
    assert sizes == [["| 128", "64"], ["| 256", "128"], ["| 512", "256"], ["| 1024", "512"], ["| 2048", "1024"]]
    caps = [row.split(" | ")[:2] for row in caps_table(result).splitlines()[2:]]
    assert caps == [[f"| {what}", count] for what in ("whole prompts", "chunks") for count in ("as many as fit", "one")]


def test_figure_is_a_small_picture(tmp_path: Path) -> None:
    plot_ladder(GOOD, tmp_path / "ablation.png", title="The steps")
    picture = (tmp_path / "ablation.png").read_bytes()
    assert picture.startswith(b"\x89PNG")
    assert len(picture) < 150_000
